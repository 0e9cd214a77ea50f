//! Why a pod is not there or not ready, in a few words: a pure function of its status.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodStatus};

/// Longest message of Kubernetes that is passed on, in characters.
const MESSAGE_CHARS: usize = 160;

/// Whether a pod is ready.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod.status.as_ref(), "Ready").is_some_and(|condition| condition.status == "True")
}

/// Why a pod is not ready; nothing if it is.
pub fn explain(pod: &Pod) -> Option<String> {
    if is_ready(pod) {
        return None;
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Some("it is being deleted".into());
    }
    let Some(status) = &pod.status else { return Some("Pending".into()) };
    if status.phase.as_deref() == Some("Failed") {
        return Some(said("Failed", status.reason.as_deref(), status.message.as_deref()));
    }
    let init = status.init_container_statuses.iter().flatten();
    let containers = init.chain(status.container_statuses.iter().flatten());
    let mut waits = None;
    for container in containers {
        match trouble(pod, container) {
            Some((true, why)) => return Some(why),
            Some((false, why)) => waits = waits.or(Some(why)),
            None => {}
        }
    }
    let unscheduled = condition(Some(status), "PodScheduled").filter(|condition| condition.status == "False");
    if let Some(condition) = unscheduled {
        return Some(said("Pending", condition.reason.as_deref(), condition.message.as_deref()));
    }
    waits.or_else(|| {
        Some(match status.phase.as_deref() {
            Some("Running") => "its readiness probe does not pass yet".into(),
            Some(phase) => phase.to_owned(),
            None => "Pending".into(),
        })
    })
}

fn condition<'a>(status: Option<&'a PodStatus>, kind: &str) -> Option<&'a PodCondition> {
    status?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// What is wrong with a container, and whether it is more than that it starts.
fn trouble(pod: &Pod, container: &ContainerStatus) -> Option<(bool, String)> {
    let state = container.state.clone().unwrap_or_default();
    let before = container.last_state.clone().unwrap_or_default().terminated;
    if let Some(waiting) = state.waiting {
        let reason = waiting.reason.unwrap_or_else(|| "waiting".into());
        if matches!(reason.as_str(), "ContainerCreating" | "PodInitializing") {
            return Some((false, reason));
        }
        return Some((
            true,
            match before {
                Some(before) => format!("{reason}, {}", ended(pod, container, &before)),
                None => said("", Some(&reason), waiting.message.as_deref()),
            },
        ));
    }
    if let Some(terminated) = state.terminated {
        // An init container that is done is no trouble.
        return (terminated.exit_code != 0).then(|| (true, ended(pod, container, &terminated)));
    }
    let before = before?;
    Some((true, format!("{}, restarted {} times", ended(pod, container, &before), container.restart_count)))
}

fn ended(pod: &Pod, container: &ContainerStatus, end: &ContainerStateTerminated) -> String {
    let reason = end.reason.as_deref().unwrap_or("Error");
    if reason != "OOMKilled" {
        return format!("its last process ended with code {} ({reason})", end.exit_code);
    }
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let own = containers.filter(|spec| spec.name == container.name);
    let limit = own.filter_map(|spec| spec.resources.as_ref()?.limits.as_ref()?.get("memory")).next();
    match limit {
        Some(limit) => format!("OOMKilled: it needed more than its memory limit of {}", limit.0),
        None => "OOMKilled: its machine had no memory left".into(),
    }
}

/// "Pending: Unschedulable: 0/3 nodes are available", without the parts that are missing.
fn said(phase: &str, reason: Option<&str>, message: Option<&str>) -> String {
    let message = message.map(|message| message.chars().take(MESSAGE_CHARS).collect::<String>());
    let parts = [Some(phase), reason, message.as_deref()];
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(json: serde_json::Value) -> Option<String> {
        explain(&serde_json::from_value(json).unwrap())
    }

    #[test]
    fn reasons_are_those_that_people_look_for() {
        let waiting = |reason: &str| {
            serde_json::json!({"status": {"phase": "Pending", "containerStatuses": [
                {"name": "trainer", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                 "state": {"waiting": {"reason": reason}}}]}})
        };
        assert_eq!(why(waiting("ImagePullBackOff")).unwrap(), "ImagePullBackOff");
        assert_eq!(why(waiting("ContainerCreating")).unwrap(), "ContainerCreating");
        let unscheduled = serde_json::json!({"status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
             "message": "0/3 nodes are available: 3 Insufficient cpu."}]}});
        assert_eq!(
            why(unscheduled).unwrap(),
            "Pending: Unschedulable: 0/3 nodes are available: 3 Insufficient cpu."
        );
        let killed = serde_json::json!({
            "spec": {"containers": [{"name": "trainer", "resources": {"limits": {"memory": "16Gi"}}}]},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "trainer", "image": "", "imageID": "", "ready": false, "restartCount": 3,
                 "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                 "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}});
        assert_eq!(
            why(killed).unwrap(),
            "CrashLoopBackOff, OOMKilled: it needed more than its memory limit of 16Gi"
        );
        let refused = serde_json::json!({"status": {"phase": "Failed", "reason": "TopologyAffinityError"}});
        assert_eq!(why(refused).unwrap(), "Failed: TopologyAffinityError");
        let ready = serde_json::json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        assert_eq!(why(ready), None);
        let slow = serde_json::json!({"status": {"phase": "Running"}});
        assert_eq!(why(slow).unwrap(), "its readiness probe does not pass yet");
    }
}
