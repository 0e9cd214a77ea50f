{{/* What a schema can't say: names that get too long, values that contradict each other. Included by every mode. */}}

{{- define "muster.checks" -}}
{{- $full := include "muster.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $full) -}}
{{- fail (printf "Objects would be called %q: names of Services are lower-case letters, digits and hyphens and begin with a letter. Choose another release name, or set fullnameOverride." $full) -}}
{{- end -}}
{{- if eq .Values.mode "cluster" -}}
{{- /* The StatefulSet's controller labels pods with NAME-HASH, ten characters of hash; labels end at 63. */ -}}
{{- $name := include "muster.trainer" . -}}
{{- if gt (len $name) 52 -}}
{{- fail (printf "The StatefulSet would be called %q (%d characters). Kubernetes adds 11 for the label of its revision and allows 63: use a release name that is %d shorter, or set fullnameOverride to at most 44 characters." $name (len $name) (sub (len $name) 52)) -}}
{{- end -}}
{{- else -}}
{{- /* Pods of a Job are called NAME-xxxxx and carry the Job's name as a label. */ -}}
{{- if gt (len $full) 57 -}}
{{- fail (printf "The Job would be called %q (%d characters). Kubernetes adds 6 for its pods and allows 63: use a release name that is %d shorter, or set fullnameOverride." $full (len $full) (sub (len $full) 57)) -}}
{{- end -}}
{{- if and (not .Values.job.runFile) (not .Values.job.existingConfigMap) -}}
{{- fail "mode is job, but there is no run file: --set-file job.runFile=run.toml, or job.existingConfigMap." -}}
{{- end -}}
{{- if and .Values.job.runFile .Values.job.existingConfigMap -}}
{{- fail "job.runFile and job.existingConfigMap exclude each other." -}}
{{- end -}}
{{- end -}}
{{- $t := .Values.trainer -}}
{{- if and (eq $t.cpuPlacement "dra") (ne (mod ($t.cpus | int) ($t.dra.groups | int)) 0) -}}
{{- fail (printf "trainer.cpus (%v) can't be dealt evenly to trainer.dra.groups (%v)." $t.cpus $t.dra.groups) -}}
{{- end -}}
{{- if and (eq $t.cpuPlacement "dra") (not (.Capabilities.APIVersions.Has "resource.k8s.io/v1")) (semverCompare "<1.34.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "trainer.cpuPlacement is dra, which needs resource.k8s.io/v1 (Kubernetes 1.34); this cluster is %s." .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if lt ($t.terminationGracePeriodSeconds | int) 60 -}}
{{- fail "trainer.terminationGracePeriodSeconds is below 60: 15 s are kept for the end, and ranks need time to save." -}}
{{- end -}}
{{- if and .Values.tls.enabled (eq .Values.mode "cluster") -}}
{{- if or (not .Values.tls.coordinatorSecret) (not .Values.tls.trainerSecret) -}}
{{- fail "tls.enabled needs tls.coordinatorSecret and tls.trainerSecret: names of Secrets with ca.crt, tls.crt and tls.key (deploy/README.md says how to make them)." -}}
{{- end -}}
{{- end -}}
{{- if and .Values.coordinator.scaling.enabled (lt (.Values.coordinator.scaling.max | int) (.Values.coordinator.scaling.min | int)) -}}
{{- fail (printf "coordinator.scaling.max (%v) is below coordinator.scaling.min (%v)." .Values.coordinator.scaling.max .Values.coordinator.scaling.min) -}}
{{- end -}}
{{- if and (include "muster.care" .) (ne .Values.coordinator.discovery "endpoints") -}}
{{- fail (printf "coordinator.explainPods, protectPods, podEvents and scaling need coordinator.discovery endpoints, not %s." .Values.coordinator.discovery) -}}
{{- end -}}
{{- if and .Values.kueue.queueName .Values.coordinator.scaling.enabled -}}
{{- fail "kueue.queueName and coordinator.scaling.enabled exclude each other: Kueue admits a StatefulSet as a whole and knows only 0 and all of its replicas." -}}
{{- end -}}
{{- end -}}
