//! Imports a file: a task for each of its lines, and one after all of them.
//!
//! `IMPORTS/<number>.csv` has up to 1,000 lines `sku,price`. Each becomes a file in `IMPORTS/<number>/`. The task that stores the last
//! one requests `import.finish`. Two tasks may both find that they are the last: they request the same id.

use std::{env, fs, io::Write, path::PathBuf};

use garenne::{Data, Exit, TaskContext, cli, handler::FollowUp, json_payload};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

#[derive(Serialize, Deserialize)]
struct Import {
    number: u32,
}
json_payload!(Import, "import.start");

#[derive(Serialize, Deserialize)]
struct Row {
    import: u32,
    number: usize,
    of: usize,
    line: String,
}
json_payload!(Row, "import.row");

#[derive(Serialize, Deserialize)]
struct Finish {
    import: u32,
}
json_payload!(Finish, "import.finish");

struct Imports(PathBuf);

impl Imports {
    /// Stores a whole file or none. Another run stores the same.
    fn store(&self, text: &str, name: &str) -> garenne::Result<()> {
        let mut file = NamedTempFile::new_in(&self.0)?;
        file.write_all(text.as_bytes())?;
        file.persist(self.0.join(name))?;
        Ok(())
    }
}

async fn start(cx: TaskContext, imports: Data<Imports>, import: Import) -> garenne::Result<usize> {
    let file = fs::read_to_string(imports.0.join(format!("{}.csv", import.number)))?;
    fs::create_dir_all(imports.0.join(import.number.to_string()))?;
    let of = file.lines().count();
    for (number, line) in file.lines().enumerate() {
        let (import, line) = (import.number, line.to_owned());
        cx.follow_up("import.row", &Row { import, number, of, line })?;
    }
    Ok(of)
}

async fn row(cx: TaskContext, imports: Data<Imports>, row: Row) -> garenne::Result<()> {
    // A row that cannot be imported is stored as well, so that the import ends.
    let price = row.line.split_once(',').and_then(|(_, price)| price.parse::<u32>().ok());
    let stored = price.map_or("refused".to_owned(), |price| price.to_string());
    imports.store(&stored, &format!("{}/{}", row.import, row.number))?;
    if fs::read_dir(imports.0.join(row.import.to_string()))?.count() == row.of {
        let finish = FollowUp::new("import.finish", &Finish { import: row.import });
        cx.follow_up_with(finish.id(&format!("import-{}-finish", row.import)))?;
    }
    Ok(())
}

async fn finish(imports: Data<Imports>, finish: Finish) -> garenne::Result<()> {
    let (mut total, mut refused) = (0, 0);
    for row in fs::read_dir(imports.0.join(finish.import.to_string()))? {
        match fs::read_to_string(row?.path())?.parse::<u64>() {
            Ok(price) => total += price,
            Err(_) => refused += 1,
        }
    }
    let summary = format!("the prices add up to {total}, {refused} rows are refused");
    imports.store(&summary, &format!("{}.summary", finish.import))
}

fn main() -> Exit {
    cli::run("importer", |worker| {
        let imports = Imports(env::var("IMPORTS")?.into());
        Ok(worker.data(imports).handle(start).handle(row).handle(finish))
    })
}
