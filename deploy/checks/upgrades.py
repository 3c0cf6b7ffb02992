"""Checks what `helm upgrade` changes: that it never changes a field that Kubernetes refuses to change, and that it replaces
only the pods that it must.

usage: upgrades.py HELM   (from the repository's root; exit 1 with a line per fault)
"""

import contextlib
import http.server
import itertools
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import threading

import yaml

HELM = sys.argv[1]
CHART = "deploy/helm/garenne"
RELEASE, NAMESPACE = "garenne", "garenne"
EVERYTHING = ["--values", f"{CHART}/ci/everything-values.yaml"]
# The fields that Kubernetes refuses to change.
STATEFUL = ["spec.selector", "spec.serviceName", "spec.podManagementPolicy", "spec.volumeClaimTemplates"]
IMMUTABLE = {"Deployment": ["spec.selector"], "StatefulSet": STATEFUL, "Job": ["spec.template", "spec.selector"], "RoleBinding": ["roleRef"]}

faults = []


def run(arguments, **environment):
    # Without the kubeconfig of whoever runs this.
    environment = os.environ | {"KUBECONFIG": os.devnull} | environment
    done = subprocess.run([HELM, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"helm {shlex.join(arguments)}: {done.stderr}")
    return done.stdout


def by_name(manifest):
    return {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(manifest) if item}


def template(*arguments):
    """The objects as `helm template` renders them, which knows no revision. Argo CD installs charts in this way."""
    return by_name(run(["template", RELEASE, CHART, "--namespace", NAMESPACE, *EVERYTHING, *arguments]))


def field(item, path):
    for key in path.split("."):
        item = item.get(key, {})
    return item


def pods(objects):
    """The pod templates of each component. A Job's pods are replaced by those of a Job with another name."""
    found = {}
    for (kind, name), item in objects.items():
        if kind in ("Deployment", "StatefulSet", "Job"):
            component = item["metadata"]["labels"]["app.kubernetes.io/component"]
            found.setdefault(component, {})[name] = name if kind == "Job" else item["spec"]["template"]
    return found


def replaced(before, after):
    before, after = pods(before), pods(after)
    return {component for component in before.keys() | after.keys() if before.get(component) != after.get(component)}


def check_pairs():
    base = template()
    rendered = {"the values": base}
    for line in pathlib.Path("deploy/checks/upgrades").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        argument, *components = line.split()
        rendered[argument] = template("--set", argument)
        changed = replaced(base, rendered[argument])
        if changed != set(components):
            faults.append(f"--set {argument} replaces the pods of {sorted(changed)}, expected {sorted(components)}")
    refused = {}
    for (one, first), (other, second) in itertools.combinations(rendered.items(), 2):
        for key in first.keys() & second.keys():
            for path in IMMUTABLE.get(key[0], []):
                if field(first[key], path) != field(second[key], path):
                    refused.setdefault((*key, path), f"differs between {one} and {other}")
    faults.extend(f"{kind} {name}: {path} is immutable, but {why}" for (kind, name, path), why in refused.items())
    print(f"{len(rendered) - 1} upgrades compared, each with each")


class Cluster(http.server.BaseHTTPRequestHandler):
    """The part of the API server that `helm upgrade --dry-run=server` asks: discovery and Deployments."""

    replicas = {}

    def do_GET(self):
        path, status = self.path.split("?")[0], 200
        group = {"groupVersion": "apps/v1", "version": "v1"}
        resource = {"name": "deployments", "namespaced": True, "kind": "Deployment", "verbs": ["get"]}
        answer = {
            "/version": {"major": "1", "minor": "30", "gitVersion": "v1.30.0"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
            "/apis": {"kind": "APIGroupList", "groups": [{"name": "apps", "versions": [group], "preferredVersion": group}]},
            "/apis/apps/v1": {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [resource]},
        }.get(path)
        folder, _, name = path.rpartition("/")
        if folder == f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments" and name in self.replicas:
            metadata = {"name": name, "namespace": NAMESPACE}
            spec = {"replicas": self.replicas[name]}
            answer = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
        if not answer:
            answer, status = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}, 404
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def upgrades():
    """A function that renders what `helm upgrade` would apply to an installed release."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cluster)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:

        def upgrade(revision, *arguments, replicas=None):
            Cluster.replicas = replicas or {}
            # Helm keeps its releases in memory and reads them from this file.
            releases = pathlib.Path(folder, "releases.yaml")
            chart = {"metadata": yaml.safe_load(pathlib.Path(CHART, "Chart.yaml").read_text())}
            installed = {"name": RELEASE, "namespace": NAMESPACE, "version": revision - 1, "manifest": ""}
            releases.write_text(yaml.safe_dump([installed | {"info": {"status": "deployed"}, "chart": chart}]))
            options = ["--namespace", NAMESPACE, "--dry-run=server", "--output", "json"]
            options += ["--kube-apiserver", f"http://127.0.0.1:{server.server_port}"]
            done = run(
                ["upgrade", RELEASE, CHART, *options, *EVERYTHING, *arguments],
                HELM_DRIVER="memory",
                HELM_MEMORY_DRIVER_DATA=str(releases),
            )
            return by_name(json.loads(done)["manifest"])

        yield upgrade
    server.shutdown()


def check_job_runs_again(upgrade):
    changed = replaced(upgrade(2), upgrade(3))
    if changed != {"topology"}:
        faults.append(f"an upgrade without a change replaces the pods of {sorted(changed)}, expected only the topology's")


def check_replicas(upgrade):
    """A Deployment with an autoscaler keeps its number. A manifest without one would reset it to 1."""
    cases = [
        # autoscaling.type, minReplicas, present number, number in the manifest
        ("hpa", 2, 7, 7),
        ("hpa", 2, 1, 2),
        ("hpa", 2, 0, 2),
        ("hpa", 2, None, None),
        ("keda-rabbitmq", 0, 3, 3),
        ("keda-console", 0, 0, 0),
        ("none", 1, 7, 4),
    ]
    name = f"{RELEASE}-worker-fast"
    for type, least, present, expected in cases:
        values = f"workers.fast.replicas=4,workers.fast.autoscaling.type={type},workers.fast.autoscaling.minReplicas={least}"
        replicas = {} if present is None else {name: present}
        found = upgrade(2, "--set", values, replicas=replicas)["Deployment", name]["spec"].get("replicas")
        if found != expected:
            faults.append(f"{values}, {present} replicas: the manifest has {found}, expected {expected}")


check_pairs()
with upgrades() as upgrade:
    check_job_runs_again(upgrade)
    check_replicas(upgrade)
for fault in faults:
    print(fault, file=sys.stderr)
sys.exit(1 if faults else 0)
