"""A replacement of `kustomize build` for machines without kustomize. It supports only the fields that this repository's
overlays use and refuses all others. If kustomize is installed, its result is compared with this one.

usage: overlay.py FOLDER OUT.yaml [REAL.yaml]
"""

import pathlib
import re
import sys

import yaml

KNOWN = {"apiVersion", "kind", "namespace", "resources", "components", "images", "replicas", "patches"}


def load(path):
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def selected(labels, selector):
    for part in re.split(r",(?![^(]*\))", selector):
        among = re.fullmatch(r"(\S+) in \((.*)\)", part.strip())
        name, values = (among[1], among[2].split(", ")) if among else (part.split("=")[0], [part.split("=")[1]])
        if labels.get(name) not in values:
            return False
    return True


def targets(objects, target):
    found = [
        item
        for item in objects
        if item["kind"] == target["kind"]
        and target.get("name", item["metadata"]["name"]) == item["metadata"]["name"]
        and ("labelSelector" not in target or selected(item["metadata"]["labels"], target["labelSelector"]))
    ]
    if not found:
        sys.exit(f"the target of a patch does not exist: {target}")
    return found


def step(value, key):
    return value[int(key)] if isinstance(value, list) else value[key]


def operate(item, operation):
    *path, last = [part.replace("~1", "/") for part in operation["path"].strip("/").split("/")]
    place = item
    for key in path:
        place = step(place, key)
    if operation["op"] == "test":
        if step(place, last) != operation["value"]:
            sys.exit(f"{item['kind']} {item['metadata']['name']}: {operation['path']} is {step(place, last)}, not {operation['value']}")
    elif operation["op"] == "remove":
        del place[last]
    elif operation["op"] == "replace":
        step(place, last)
        place[int(last) if isinstance(place, list) else last] = operation["value"]
    else:
        sys.exit(f"operation {operation['op']} is not supported")


def merge(into, patch):
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        elif isinstance(value, list):
            sys.exit(f"{key}: merging lists is not supported")
        else:
            into[key] = value


def apply(objects, folder, patch):
    text = patch.get("patch") or (folder / patch["path"]).read_text()
    for change in yaml.safe_load_all(text):
        if isinstance(change, list):
            for item in targets(objects, patch["target"]):
                for operation in change:
                    operate(item, operation)
            continue
        name = change["metadata"]["name"]
        found = targets(objects, patch.get("target") or {"kind": change["kind"], "name": name})
        if change.pop("$patch", None) == "delete":
            objects[:] = [item for item in objects if item not in found]
            continue
        for item in found:
            merge(item, {key: value for key, value in change.items() if key not in ("apiVersion", "kind", "metadata")})


def build(folder, objects=()):
    wanted = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := wanted.keys() - KNOWN:
        sys.exit(f"{folder}: {', '.join(sorted(unknown))}: not supported")
    objects = list(objects)
    for name in wanted.get("resources", []):
        path = folder / name
        objects += build(path) if path.is_dir() else load(path)
    for name in wanted.get("components", []):
        objects = build(folder / name, objects)
    for patch in wanted.get("patches", []):
        apply(objects, folder, patch)
    for count in wanted.get("replicas", []):
        targets(objects, {"kind": "Deployment", "name": count["name"]})[0]["spec"]["replicas"] = count["count"]
    for image in wanted.get("images", []):
        used = False
        for item in objects:
            for container in item["spec"]["template"]["spec"]["containers"] if item["kind"] == "Deployment" else []:
                name, _, tag = container["image"].partition(":")
                if name == image["name"]:
                    used = True
                    container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"
        if not used:
            sys.exit(f"{folder}: image {image['name']} is not used by any container")
    for item in objects:
        if "namespace" in wanted:
            item["metadata"]["namespace"] = wanted["namespace"]
    return objects


def main():
    folder, out, *real = map(pathlib.Path, sys.argv[1:])
    built = build(folder)
    out.write_text(yaml.safe_dump_all(built))
    if real:
        key = lambda item: (item["kind"], item["metadata"]["name"])
        mine, theirs = sorted(built, key=key), sorted(load(real[0]), key=key)
        if mine != theirs:
            differing = [key(one) for one, other in zip(mine, theirs) if one != other]
            sys.exit(f"{folder}: kustomize and overlay.py disagree on {differing or 'the set of objects'}")


main()
