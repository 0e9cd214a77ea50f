"""Checks the Helm chart, or renders deploy/manifests anew: python chart.py check | render.

Every values file of deploy/chart/examples is linted, rendered, compared with deploy/manifests, validated against the
schemas of Kubernetes and held to the rules of rules.py. Every entry of refusals.yaml must be refused in its words.
"""

import difflib
import pathlib
import re
import sys

import helm_python as helm
import kubernetes_validate
import yaml

import rules

DEPLOY = pathlib.Path(__file__).resolve().parent.parent
CHART = DEPLOY / "chart"
MANIFESTS = DEPLOY / "manifests"
RELEASE = {"name": "muster", "namespace": "muster"}
# The oldest version that Chart.yaml allows, and the newest that the validator knows.
OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version()
# In the order in which they are to be made.
KINDS = [
    "PriorityClass", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount", "ConfigMap", "PersistentVolumeClaim",
    "Role", "RoleBinding", "ResourceClaimTemplate", "Service", "Deployment", "StatefulSet", "Job", "PodMonitor", "Pod",
]


def main(command: str) -> int:
    with helm.Chart.load(CHART) as chart:
        if command == "render":
            return render_all(chart)
        failures = version(chart) + examples(chart) + loader() + refusals(chart)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    if failures:
        return 1
    print("chart: lint, schema, manifests and rules hold")
    return 0


def render_all(chart) -> int:
    MANIFESTS.mkdir(exist_ok=True)
    wanted = {path.name: manifest(documents(chart, path)) for path in values_files()}
    for old in MANIFESTS.glob("*.yaml"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (MANIFESTS / name).write_text(text)
    print(f"rendered {len(wanted)} files in {MANIFESTS.relative_to(DEPLOY.parent)}")
    return 0


def values_files() -> list[pathlib.Path]:
    return sorted((CHART / "examples").glob("*.yaml"))


def documents(chart, values: pathlib.Path) -> list[str]:
    """The objects of one example as YAML texts, in the order in which they are to be made."""
    rendered = chart.render(yaml.safe_load(values.read_text()), **RELEASE)
    texts = []
    for path, text in sorted(rendered.items()):
        if not path.endswith("NOTES.txt"):
            texts += [part.strip("\n") + "\n" for part in re.split(r"^---$", text, flags=re.M) if yaml.safe_load(part)]

    def place(text: str):
        parsed = yaml.safe_load(text)
        return KINDS.index(parsed["kind"]), parsed["metadata"]["name"]

    return sorted(texts, key=place)


def manifest(texts: list[str]) -> str:
    """For kubectl: without what only Helm understands."""
    kept = [text for text in texts if "helm.sh/hook" not in text]
    kept = [re.sub(r"^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", "", text, flags=re.M) for text in kept]
    return "# Rendered from deploy/chart by `make manifests`; release and namespace are called muster.\n" + "---\n".join(kept)


def version(chart) -> list[str]:
    toml = (DEPLOY.parent / "Cargo.toml").read_text()
    binary = re.search(r'^version = "(.*)"$', toml, flags=re.M).group(1)
    stated = chart.metadata["appVersion"]
    return [] if stated == binary else [f"deploy/chart/Chart.yaml: appVersion is {stated}, Cargo.toml says {binary}"]


def examples(chart) -> list[str]:
    failures, seen = [], set()
    for path in values_files():
        seen.add(path.name)
        values = yaml.safe_load(path.read_text())
        report = helm.lint(CHART, values, strict=True, namespace=RELEASE["namespace"])
        failures += [f"{path.name}: helm lint: {m['path']}: {m['error']}" for m in report["messages"] if m["severity"] > 1]
        texts = documents(chart, path)
        objects = [yaml.safe_load(text) for text in texts]
        failures += [f"{path.name}: {found}" for found in valid(objects) + rules.broken(objects)]
        failures += stale(path.name, manifest(texts))
    failures += [
        f"deploy/manifests/{old.name} has no values file in deploy/chart/examples: make manifests"
        for old in MANIFESTS.glob("*.yaml")
        if old.name not in seen
    ]
    return failures


def valid(objects: list[dict]) -> list[str]:
    failures = []
    # What cpuPlacement "dra" needs came with 1.34, and the chart refuses older clusters.
    oldest = "1.34" if any(thing["kind"] == "ResourceClaimTemplate" for thing in objects) else OLDEST
    for thing in objects:
        if thing["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        for kubernetes in (oldest, NEWEST):
            try:
                kubernetes_validate.validate(thing, kubernetes, strict=True)
            except kubernetes_validate.ValidationError as error:
                where = ".".join(str(step) for step in error.path)
                failures.append(f"{thing['kind']} {thing['metadata']['name']}, {kubernetes}: {where}: {error.message}")
    return failures


def stale(name: str, wanted: str) -> list[str]:
    path = MANIFESTS / name
    found = path.read_text() if path.exists() else ""
    if found == wanted:
        return []
    lines = difflib.unified_diff(found.splitlines(), wanted.splitlines(), f"manifests/{name}", "rendered", lineterm="", n=1)
    return [f"deploy/manifests/{name} is not what the chart renders (make manifests):\n" + "\n".join(list(lines)[:40])]


def loader() -> list[str]:
    pod = yaml.safe_load((DEPLOY / "loader.yaml").read_text())
    return [f"loader.yaml: {found}" for found in valid([pod]) + rules.of_pod(pod["spec"])]


def refusals(chart) -> list[str]:
    failures = []
    for case in yaml.safe_load((DEPLOY / "check" / "refusals.yaml").read_text()):
        release = {**RELEASE, "name": case.get("release", RELEASE["name"])}
        try:
            chart.validate_schema(case["values"])
            chart.render(case["values"], **release)
        except helm.HelmError as error:
            if case["says"] not in str(error):
                failures.append(f"refusal {case['values']}: expected {case['says']!r} in: {error}")
        else:
            failures.append(f"values that must be refused are accepted: {case['values']}")
    return failures


if __name__ == "__main__":
    if sys.argv[1:] not in (["check"], ["render"]):
        sys.exit("usage: chart.py check | render")
    sys.exit(main(sys.argv[1]))
