"""Rules that hold for every rendering of the chart and that no schema of Kubernetes can say."""

GUARANTEED = ("trainer",)


def broken(objects: list[dict]) -> list[str]:
    found = []
    for thing in objects:
        who = f"{thing['kind']} {thing['metadata']['name']}"
        found += [f"{who}: {what}" for what in of_object(thing)]
        pod = pod_of(thing)
        if pod:
            found += [f"{who}: {what}" for what in of_pod(pod)]
    return found + connected(objects)


def pod_of(thing: dict) -> dict | None:
    if thing["kind"] == "Pod":
        return thing["spec"]
    return thing["spec"]["template"]["spec"] if thing["kind"] in ("Deployment", "StatefulSet", "Job") else None


def of_object(thing: dict) -> list[str]:
    found = []
    if thing["kind"] != "PriorityClass" and thing["metadata"].get("namespace") != "muster":
        found.append("is not in the release's namespace")
    if thing["kind"] == "StatefulSet":
        spec = thing["spec"]
        if spec["podManagementPolicy"] != "Parallel" or spec["updateStrategy"]["type"] != "OnDelete":
            found.append("must start in parallel and be updated on delete")
    if thing["kind"] == "Deployment" and (thing["spec"]["replicas"], thing["spec"]["strategy"]["type"]) != (1, "Recreate"):
        found.append("two coordinators may not run at once")
    if thing["kind"] in ("Role", "ClusterRole"):
        for rule in thing["rules"]:
            if "*" in rule["verbs"] + rule["resources"] + rule["apiGroups"] or "secrets" in rule["resources"]:
                found.append(f"too much: {rule}")
    if thing["kind"].startswith("ClusterRole"):
        found.append("the chart needs no rights in other namespaces")
    return found


def of_pod(pod: dict) -> list[str]:
    """Pod security "restricted", but for SYS_NICE; Guaranteed for those that train."""
    found, context = [], pod["securityContext"]
    if not context.get("runAsNonRoot") or context["seccompProfile"]["type"] != "RuntimeDefault":
        found.append("must not run as root, and needs the runtime's seccomp profile")
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            found.append(f"{key} is set")
    if any("hostPath" in volume for volume in pod.get("volumes", [])):
        found.append("mounts a directory of the host")
    if pod.get("initContainers"):
        found.append("an init container takes cores of the static CPU manager")
    token = pod.get("automountServiceAccountToken")
    for container in pod["containers"]:
        own, name = container["securityContext"], container["name"]
        if own["allowPrivilegeEscalation"] or not own["readOnlyRootFilesystem"] or own["capabilities"]["drop"] != ["ALL"]:
            found.append(f"container {name} is not restricted")
        if set(own["capabilities"].get("add", [])) - {"SYS_NICE"}:
            found.append(f"container {name} has capabilities")
        if container["resources"]["requests"] != container["resources"]["limits"]:
            found.append(f"container {name}: requests are not limits")
        if name in GUARANTEED:
            if token is not False:
                found.append("trainers have no token")
            if {"cpu", "memory"} - set(container["resources"]["limits"]):
                found.append(f"container {name} is not Guaranteed")
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        if mounted - {volume["name"] for volume in pod.get("volumes", [])} - {"cache"}:
            found.append(f"container {name} mounts what isn't there")
    return found


def connected(objects: list[dict]) -> list[str]:
    """Services, policies and budgets select pods that exist, and names that flags mention are those of objects."""
    found = []
    labels = [thing["spec"]["template"]["metadata"]["labels"] for thing in objects
              if thing["kind"] in ("Deployment", "StatefulSet", "Job")]
    for thing in objects:
        selector = {
            "Service": lambda spec: spec["selector"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
        }.get(thing["kind"])
        if selector and not any(selector(thing["spec"]).items() <= pod.items() for pod in labels):
            found.append(f"{thing['kind']} {thing['metadata']['name']} selects no pod")
    names = {(thing["kind"], thing["metadata"]["name"]) for thing in objects}
    services = {name for kind, name in names if kind == "Service"}
    for thing in objects:
        pod = pod_of(thing) or {"containers": []}
        for argument in [argument for container in pod["containers"] for argument in container["args"]]:
            flag, _, value = argument.partition("=")
            host = value.split(":")[-1] if flag == "--discover" else value.split(":")[0]
            if flag in ("--discover", "--coordinator") and host.split(".")[0] not in services:
                found.append(f"{argument} names no Service")
            if flag == "--disruption-budget" and ("PodDisruptionBudget", value) not in names:
                found.append(f"{argument} names no PodDisruptionBudget")
            if flag == "--scale-statefulset" and ("StatefulSet", value) not in names:
                found.append(f"{argument} names no StatefulSet")
        for volume in pod.get("volumes", []):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName", "")
            if claim.startswith("muster") and ("PersistentVolumeClaim", claim) not in names:
                found.append(f"the claim {claim} isn't there")
    stateful = [thing for thing in objects if thing["kind"] == "StatefulSet"]
    found += [f"serviceName {s['spec']['serviceName']} is no Service" for s in stateful
              if s["spec"]["serviceName"] not in services]
    return found
