"""Checks rendered manifests against Kubernetes' schemas, against each other, and against the programs' source code.

usage: manifests.py NAMESPACE FILE.yaml…   (from the repository's root; each file has all objects of one installation,
                                            in NAMESPACE unless they name another; exit 1 with a line per fault)
"""

import pathlib
import re
import sys
import urllib.parse

import jsonschema
import kubernetes_validate
import yaml

# The oldest version that Chart.yaml allows, and the newest one whose schemas the package has.
VERSIONS = ["1.27", kubernetes_validate.latest_version()]
CUSTOM = yaml.safe_load(pathlib.Path("deploy/checks/custom_resources.yaml").read_text())
PROGRAMS = {"gateway", "bridge", "worker", "console"}


def source(path):
    return pathlib.Path(path).read_text()


ROUTES = set(re.findall(r'\.route\("(/\w+)"', source("common/src/telemetry/admin/routes.rs")))
SETTLING = int(re.search(r"SETTLE_TIME: Duration = Duration::from_secs\((\d+)\)", source("worker/engine/src/budget.rs"))[1])
LAST_SPANS = int(re.search(r"LAST_EXPORT: Duration = Duration::from_secs\((\d+)\)", source("common/src/telemetry/service.rs"))[1])
SETTINGS = {"config", "log"}
# The first cells of the tables of settings; a test checks that these list every setting.
PAGES = source("docs/settings.md").split("\n## Exit codes")[0] + source("docs/ingest.md")
SETTINGS |= set(re.findall(r"`([a-z_]+)\.\*`", PAGES))
for row in re.findall(r"^\| (`.*?) \|", PAGES, re.M):
    SETTINGS |= set(re.findall(r"`(?:lanes\.<name>\.)?([a-z_]+)", row.split(" (")[0]))


# What the console answers, as source code.
ANSWERS = {
    r"/scale/[\w-]+": source("console/src/dashboard/routes.rs"),
    "/api/now": source("console/src/monitor/view.rs") + source("console/src/monitor/sample.rs"),
}
NAMESPACE = sys.argv[1]


def size(text):
    """The bytes of a size of Kubernetes or of a setting."""
    number, unit = re.fullmatch(r"(\d+)([kKMG]?i?)B?", text).groups()
    powers = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3}
    return int(number) * (1024 if unit.endswith("i") else 1000) ** powers[unit.rstrip("i")]


class Installation:
    def __init__(self, path):
        self.path = path
        self.objects = [item for item in yaml.safe_load_all(source(path)) if item]
        self.faults = []
        # The address that all programs listen on.
        self.listening = None
        self.pods = [(item, item["spec"]["template"]) for item in self.objects if item["kind"] in ("Deployment", "StatefulSet", "Job")]

    def fault(self, item, text):
        self.faults.append(f"{self.path}: {item['kind']} {item['metadata'].get('name')}: {text}")

    def named(self, kind, name):
        return any(item["kind"] == kind and item["metadata"]["name"] == name for item in self.objects)

    def matching(self, labels):
        return [pod for _, pod in self.pods if labels.items() <= pod["metadata"]["labels"].items()]

    def check(self):
        seen = set()
        for item in self.objects:
            key = (item["kind"], item["metadata"]["name"])
            if key in seen:
                self.fault(item, "is defined twice")
            seen.add(key)
            self.schema(item)
            getattr(self, item["kind"].lower(), lambda item: None)(item)
        for item, pod in self.pods:
            self.pod(item, pod)
        scaled = [item["spec"]["scaleTargetRef"]["name"] for item in self.objects if "scaleTargetRef" in item.get("spec", {})]
        for name in {name for name in scaled if scaled.count(name) > 1}:
            self.faults.append(f"{self.path}: Deployment {name} has {scaled.count(name)} autoscalers")
        return self.faults

    def schema(self, item):
        kind = f"{item['apiVersion']}/{item['kind']}"
        try:
            if "." in item["apiVersion"] and not item["apiVersion"].split("/")[0].endswith(".k8s.io"):
                if kind not in CUSTOM:
                    return self.fault(item, f"{kind} is not in custom_resources.yaml")
                resolvable = {**CUSTOM[kind], "definitions": CUSTOM["definitions"]}
                jsonschema.Draft7Validator(resolvable).validate(item["spec"])
            else:
                for version in VERSIONS:
                    kubernetes_validate.validate(item, version, strict=True)
        except (kubernetes_validate.ValidationError, jsonschema.ValidationError) as error:
            place = ".".join(str(step) for step in error.path)
            self.fault(item, f"{place}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError as error:
            self.fault(item, str(error))

    # References by labels or by name.

    def selects(self, item, labels):
        pods = self.matching(labels)
        if not pods:
            self.fault(item, f"selects no pod: {labels}")
        return pods

    def ports(self, item, pods, names):
        for name in names:
            for pod in pods:
                if not any(name in (port["name"], port["containerPort"]) for port in exposed(pod)):
                    self.fault(item, f"no port {name} on {pod['metadata']['labels'].get('app.kubernetes.io/component')}")

    def service(self, item):
        pods = self.selects(item, item["spec"]["selector"])
        self.ports(item, pods, [port["targetPort"] for port in item["spec"]["ports"]])

    def poddisruptionbudget(self, item):
        self.selects(item, item["spec"]["selector"]["matchLabels"])

    def networkpolicy(self, item):
        pods = self.selects(item, item["spec"]["podSelector"]["matchLabels"])
        if sorted(item["spec"]["policyTypes"]) != ["Egress", "Ingress"]:
            self.fault(item, "policyTypes: expected both, because a direction that is not named is open")
        open_ports = [port for rule in item["spec"]["egress"] for port in rule.get("ports", [])]
        for port in (53, 5353):
            for protocol in ("UDP", "TCP"):
                # A policy applies to the port of the pod. OpenShift's DNS pods listen on 5353.
                if {"port": port, "protocol": protocol} not in open_ports:
                    self.fault(item, f"egress: no port {port}/{protocol} for DNS")
        self.ports(item, pods, [port["port"] for rule in item["spec"]["ingress"] for port in rule.get("ports", [])])

    def podmonitor(self, item):
        pods = self.selects(item, item["spec"]["selector"]["matchLabels"])
        pods = [pod for pod in pods if exposed(pod)]
        self.ports(item, pods, [end["port"] for end in item["spec"]["podMetricsEndpoints"]])
        for end in item["spec"]["podMetricsEndpoints"]:
            for pod in pods:
                for container in programs(pod):
                    if end.get("scheme", "http") != admin_scheme(container):
                        self.fault(item, f"scheme {end.get('scheme')}: container {container['name']} speaks {admin_scheme(container)}")
            if end.get("path") not in ROUTES:
                self.fault(item, f"path {end.get('path')}: the admin port has {', '.join(sorted(ROUTES))}")

    def horizontalpodautoscaler(self, item):
        self.scales(item)

    def scaledobject(self, item):
        self.scales(item)
        for trigger in item["spec"]["triggers"]:
            name = trigger.get("authenticationRef", {}).get("name")
            if name and not self.named("TriggerAuthentication", name):
                self.fault(item, f"no TriggerAuthentication {name}")
            if trigger["type"] == "metrics-api":
                self.console(item, trigger["metadata"])
            else:
                self.queues(item, trigger["metadata"])
        if item["spec"]["minReplicaCount"] == 0 and not any(
            "quarantine" in trigger["metadata"].get("queueName", trigger["metadata"].get("valueLocation"))
            for trigger in item["spec"]["triggers"]
        ):
            self.fault(item, "minReplicaCount is 0, but no trigger counts the quarantine, which needs a worker")

    def console(self, item, metadata):
        """The URL that KEDA asks. KEDA resolves it in its own namespace."""
        namespace = item["metadata"].get("namespace", NAMESPACE)
        url = re.fullmatch(r"http://([\w-]+)\.([\w-]+)\.svc:(\d+)(/[^?]*)(\?.*)?", metadata["url"])
        if not url or url[2] != namespace:
            return self.fault(item, f"{metadata['url']}: expected http://SERVICE.{namespace}.svc:PORT/…")
        services = [one for one in self.objects if one["kind"] == "Service" and one["metadata"]["name"] == url[1]]
        if not any(port["port"] == int(url[3]) for one in services for port in one["spec"]["ports"]):
            self.fault(item, f"{metadata['url']}: no Service {url[1]} with port {url[3]}")
        answer = next((answer for route, answer in ANSWERS.items() if re.fullmatch(route, url[4])), "")
        for name in metadata["valueLocation"].split("."):
            if not re.search(rf'"{name}":|pub {name}: ', answer):
                self.fault(item, f"{url[4]} of the console has no field {name}")

    def queues(self, item, metadata):
        """The broker's queues that the expression selects: one lane with all shards, or the quarantine."""
        expression = metadata["queueName"].removeprefix("(?-i)")
        prefix = "garenne"
        names = [f"{prefix}.tasks.{lane}{shard}" for lane in ("fast", "slow", "images") for shard in ("", ".1", ".15")]
        names += [f"{prefix}.quarantine", f"{prefix}.retry.quarantine.1s", f"{prefix}.retry.quarantine.5m"]
        names += [f"x.{prefix}.tasks.fast", f"{prefix}.tasks.faster", f"{prefix}.tasks.fast.1.x", f"{prefix}xtasks.fast"]
        selected = [name for name in names if re.search(expression, name)] if metadata.get("useRegex") else [expression]
        lane = expression.partition(r"tasks\.")[2].partition("(")[0]
        wanted = [name for name in names[:9] if name.split(".")[2] == lane] if lane else names[9:12]
        if selected != wanted or metadata.get("operation") != "sum" or expression == metadata["queueName"]:
            self.fault(item, f"{metadata['queueName']} counts {selected}, expected the sum of {wanted}")

    def scales(self, item):
        name = item["spec"]["scaleTargetRef"]["name"]
        target = [one for one in self.objects if one["kind"] == "Deployment" and one["metadata"]["name"] == name]
        if not target:
            self.fault(item, f"no Deployment {name}")
        elif "replicas" in target[0]["spec"]:
            self.fault(item, f"Deployment {name} sets replicas: each apply would undo the scaling")

    def rolebinding(self, item):
        if not self.named("Role", item["roleRef"]["name"]):
            self.fault(item, f"no Role {item['roleRef']['name']}")
        for subject in item["subjects"]:
            if not self.named("ServiceAccount", subject["name"]):
                self.fault(item, f"no ServiceAccount {subject['name']}")

    # Pods.

    def pod(self, item, pod):
        labels, spec = pod["metadata"]["labels"], pod["spec"]
        # Kubernetes reads null as an absent field.
        spec["volumes"] = spec.get("volumes") or []
        if not item["spec"].get("selector", {}).get("matchLabels", {}).items() <= labels.items():
            self.fault(item, "its selector does not match its own pods")
        if not self.named("ServiceAccount", spec.get("serviceAccountName")):
            self.fault(item, f"no ServiceAccount {spec.get('serviceAccountName')}")
        for field in ("automountServiceAccountToken", "enableServiceLinks"):
            if spec.get(field) is not False:
                self.fault(item, f"{field}: expected false")
        security = spec.get("securityContext", {})
        if security.get("runAsNonRoot") is not True or security.get("seccompProfile") != {"type": "RuntimeDefault"}:
            self.fault(item, "securityContext: expected runAsNonRoot and seccompProfile RuntimeDefault")
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        mounted = set()
        for container in spec["containers"]:
            self.container(item, container)
            if "METRICS" in environment(container) or container["name"] == "deletion-cost":
                asked = environment(container).get("METRICS", "http://").partition(":")[0]
                for other in programs(pod):
                    if asked != admin_scheme(other):
                        self.fault(item, f"container {container['name']} asks over {asked}, the admin port speaks {admin_scheme(other)}")
            mounted |= {mount["name"] for mount in container.get("volumeMounts", [])}
            if container["name"] in PROGRAMS:
                self.probes(item, container)
        claims = {claim["metadata"]["name"]: claim for claim in item["spec"].get("volumeClaimTemplates", [])}
        if mounted != volumes.keys() | claims.keys():
            self.fault(item, f"volumes {sorted(volumes.keys() | claims.keys())}, mounted {sorted(mounted)}")
        for container in spec["containers"]:
            self.spool(item, container, claims)
            self.forwarding(item, pod, container)
        maps = re.findall(r"'configMap': \{[^}]*'name': '([^']+)'", str(spec["volumes"]))
        for name in maps:
            if name not in ("kube-root-ca.crt", "recording-maps") and not self.named("ConfigMap", name):
                self.fault(item, f"no ConfigMap {name}")
        self.files(item, spec)
        self.grace(item, spec)

    def spool(self, item, container, claims):
        """A spool must be on a volume that outlives its pod and has room for it."""
        folder = environment(container).get("GARENNE_SPOOL")
        if not folder:
            return
        mounts = [mount["name"] for mount in container["volumeMounts"] if folder.startswith(mount["mountPath"] + "/")]
        if not mounts or mounts[0] not in claims:
            return self.fault(item, f"GARENNE_SPOOL: {folder} is not on a volume of the StatefulSet")
        needed = sum(size(environment(container)[f"GARENNE_SPOOL_{bound}"]) for bound in ("MAX_BYTES", "MIN_FREE"))
        available = size(claims[mounts[0]]["spec"]["resources"]["requests"]["storage"])
        if needed > available:
            self.fault(item, f"GARENNE_SPOOL_MAX_BYTES and GARENNE_SPOOL_MIN_FREE are {needed} bytes, the volume has {available}")

    def forwarding(self, item, pod, container):
        """A pod that forwards has a spool and nothing of the broker; the others have the broker's URL."""
        if container["name"] not in PROGRAMS:
            return
        names = environment(container)
        broker = sorted(name for name in names if name.startswith("GARENNE_AMQP_"))
        if "GARENNE_FORWARD__URL" not in names:
            if not broker:
                self.fault(item, f"container {container['name']}: neither GARENNE_AMQP_URL_FILE nor GARENNE_FORWARD__URL")
            return
        if broker or "broker-tls" in str(pod["spec"]["volumes"]):
            self.fault(item, f"container {container['name']}: forwards, but has {broker or 'the volume broker-tls'}")
        if "GARENNE_SPOOL" not in names:
            self.fault(item, f"container {container['name']}: GARENNE_FORWARD__URL needs GARENNE_SPOOL")
        port = urllib.parse.urlsplit(names["GARENNE_FORWARD__URL"]).port
        port = port or {"https": 443, "http": 80}[names["GARENNE_FORWARD__URL"].partition(":")[0]]
        for policy in self.objects:
            if policy["kind"] != "NetworkPolicy" or not policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items():
                continue
            open_ports = [one["port"] for rule in policy["spec"]["egress"] for one in rule.get("ports", [])]
            if port not in open_ports:
                self.fault(policy, f"egress: no port {port} of the central gateway")

    def files(self, item, spec):
        """Files that a setting names must be in the ConfigMap that is mounted there."""
        maps = {volume["name"]: volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume}
        data = {one["metadata"]["name"]: one["data"] for one in self.objects if one["kind"] == "ConfigMap"}
        for container in spec["containers"]:
            for mount in container.get("volumeMounts", []):
                for name, value in environment(container).items():
                    folder, _, file = str(value).rpartition("/")
                    if folder == mount["mountPath"] and file not in data.get(maps.get(mount["name"]), {file: ""}):
                        self.fault(item, f"{name}: {maps[mount['name']]} has no file {file}")
            if "GARENNE_RULES" in environment(container) and "postgres" not in environment(container)["GARENNE_SINKS"]:
                self.fault(item, "GARENNE_RULES needs the sink postgres")

    def container(self, item, container):
        security = container.get("securityContext", {})
        wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        for field, value in wanted.items():
            if security.get(field) != value:
                self.fault(item, f"container {container['name']}: securityContext.{field}: expected {value}")
        if "memory" not in container.get("resources", {}).get("limits", {}):
            self.fault(item, f"container {container['name']}: resources.limits.memory is missing")
        elif container["name"] == "worker":
            self.payload_memory(item, container)
        if not re.fullmatch(r"[^@:]+(:\d+/[^@:]+)?(:[\w.-]+|@sha256:[0-9a-f]{64})", container["image"]):
            self.fault(item, f"container {container['name']}: image {container['image']}: expected a tag or a digest")
        paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        for name, value in environment(container).items():
            if not name.startswith("GARENNE_"):
                continue
            setting = name.removeprefix("GARENNE_").lower().split("__")[0]
            if setting not in SETTINGS and setting.removesuffix("_file") not in SETTINGS:
                self.fault(item, f"container {container['name']}: {name}: no program has this setting")
            if str(value).startswith(("/run/", "/etc/")) and not any(str(value).startswith(path + "/") for path in paths):
                self.fault(item, f"container {container['name']}: {name}: nothing is mounted at {value}")

    def payload_memory(self, item, container):
        """A worker does not start if all bodies that it may hold take more than three quarters of its memory limit."""
        held = 1 + sum(int(count) for count in re.findall(r"prefetch=(\d+)", " ".join(container["args"])))
        held *= size(environment(container)["GARENNE_MAX_PAYLOAD"])
        available = size(container["resources"]["limits"]["memory"]) * 3 // 4
        if held > available:
            self.fault(item, f"the prefetched bodies may take {held} bytes, more than {available}")

    def probes(self, item, container):
        where = f"container {container['name']}"
        for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
            asked = container.get(probe, {}).get("httpGet", {})
            # Liveness must not depend on the broker: restarts would make an outage worse.
            if asked.get("path") != path or path not in ROUTES:
                self.fault(item, f"{where}: {probe}: path is {asked.get('path')}, expected {path}")
            if asked.get("scheme", "HTTP").lower() != admin_scheme(container):
                self.fault(item, f"{where}: {probe}: scheme is {asked.get('scheme')}, the admin port speaks {admin_scheme(container)}")
            if not any(asked.get("port") == port["name"] == "admin" for port in container["ports"]):
                self.fault(item, f"{where}: {probe}: port is {asked.get('port')}, expected admin")
        bound = {"GARENNE_ADMIN": "admin", "GARENNE_LISTEN": "sensors", "GARENNE_DASHBOARD__LISTEN": "dashboard"}
        for variable, name in bound.items():
            address = environment(container).get(variable)
            ports = [port["containerPort"] for port in container["ports"] if port["name"] == name]
            host = address.rpartition(":")[0] if address else self.listening
            if self.listening not in (None, host):
                self.fault(item, f"{where}: {variable} is {address}, but other ports listen on {self.listening}")
            self.listening = host
            if address and [int(address.rpartition(":")[2])] != ports:
                self.fault(item, f"{where}: {variable} is {address}, port {name} is {ports}")

    def grace(self, item, spec):
        granted = spec.get("terminationGracePeriodSeconds", 30)
        main = spec["containers"][0]
        env = {"GARENNE_SHUTDOWN_TIMEOUT": "25s", "GARENNE_HARD_GRACE": "2s"} | environment(main)
        if main["name"] == "worker":
            timeout = 0 if env.get("GARENNE_SHUTDOWN_MODE") == "hard" else seconds(env["GARENNE_SHUTDOWN_TIMEOUT"])
            needed = timeout + seconds(env["GARENNE_HARD_GRACE"]) + SETTLING
            needed += LAST_SPANS if env.get("GARENNE_OTLP__ENDPOINT") else 0
            if seconds(env.get("GARENNE_TERMINATION_GRACE", "0s")) != granted:
                self.fault(item, f"GARENNE_TERMINATION_GRACE differs from terminationGracePeriodSeconds {granted}, so the worker cannot check it")
        elif main["name"] == "gateway":
            slept = int(main["lifecycle"]["preStop"]["exec"]["command"][1])
            needed = slept + seconds(env.get("GARENNE_GATEWAY__DRAIN_TIMEOUT", "20s"))
        elif main["name"] == "bridge":
            needed = seconds(env["GARENNE_MQTT__DRAIN_TIMEOUT"])
        else:
            return
        if granted <= needed:
            self.fault(item, f"terminationGracePeriodSeconds is {granted}, a stop takes up to {needed} plus a margin")


def exposed(pod):
    return [port for container in pod["spec"]["containers"] for port in container.get("ports", [])]


def environment(container):
    return {variable["name"]: variable.get("value") for variable in container.get("env", [])}


def programs(pod):
    return [container for container in pod["spec"]["containers"] if container["name"] in PROGRAMS]


def admin_scheme(container):
    return "https" if "GARENNE_ADMIN_TLS_CERT" in environment(container) else "http"


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text)[1])


faults = []
for path in sys.argv[2:]:
    installation = Installation(path)
    faults += installation.check()
    if path == sys.argv[2]:
        # The first installation has the names that the documentation uses.
        for name in re.findall(r"url: http://([^:/]+):9465/", source("docs/scaling.md")):
            if not any(name == f"{item['metadata']['name']}.{NAMESPACE}.svc" for item in installation.objects if item["kind"] == "Service"):
                faults.append(f"docs/scaling.md: {name} is not a Service of the chart in the namespace {NAMESPACE}")
    print(f"{path}: {len(installation.objects)} objects against Kubernetes {' and '.join(VERSIONS)}")
for fault in faults:
    print(fault, file=sys.stderr)
sys.exit(1 if faults else 0)
