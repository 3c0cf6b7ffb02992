"""Checks docker-compose.yml without an engine: one `build` per image, and named volumes for data.

usage: compose.py   (from the repository's root; exit 1 with a line per fault)
"""

import sys

import yaml

# Where the servers keep their data.
DATA = {
    "rabbitmq": "/var/lib/rabbitmq",
    "postgres": "/var/lib/postgresql/data",
    "mosquitto": "/mosquitto/data",
    "bridge": "/var/lib/garenne",
    "prometheus": "/prometheus",
    "grafana": "/var/lib/grafana",
}

with open("docker-compose.yml") as file:
    project = yaml.safe_load(file)
services, faults = project["services"], []

builders = {}
for name, service in services.items():
    if "build" in service:
        builders.setdefault(service["image"], []).append(name)
for image, names in builders.items():
    # Compose v2 builds all services at once, and a build of a tag that another one just wrote can be refused.
    if len(names) > 1:
        faults.append(f"{', '.join(names)}: each builds {image}")
for name, service in services.items():
    # Without `never`, Compose v2 asks the registry for the image before it builds it.
    if service["image"] in builders and "build" not in service and service.get("pull_policy") != "never":
        faults.append(f"{name}: {builders[service['image']][0]} builds its image; expected pull_policy: never")
for name, folder in DATA.items():
    mounted = [volume.split(":") for volume in services[name].get("volumes", [])]
    volumes = [source for source, target, *_ in mounted if target == folder]
    if not volumes or volumes[0] not in project["volumes"]:
        faults.append(f"{name}: no named volume at {folder}, so `down` and `up` lose its data")

for fault in faults:
    print(f"docker-compose.yml: {fault}", file=sys.stderr)
print(f"docker-compose.yml: {len(services)} services, {len(builders)} images that it builds")
sys.exit(1 if faults else 0)
