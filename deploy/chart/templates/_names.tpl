{{/* Names, labels and the image. */}}

{{- define "muster.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}{{ .Release.Name }}{{- else -}}{{ .Release.Name }}-{{ $name }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "muster.coordinator" -}}{{ include "muster.fullname" . }}-coordinator{{- end -}}
{{- define "muster.trainer" -}}{{ include "muster.fullname" . }}-trainer{{- end -}}
{{- define "muster.trainers" -}}{{ include "muster.fullname" . }}-trainers{{- end -}}
{{- define "muster.clientLabel" -}}{{ include "muster.fullname" . }}-client{{- end -}}

{{/* What selects pods: (dict "root" . "part" "trainer"). Never changes, since selectors can't. */}}
{{- define "muster.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "muster.labels" -}}
{{ include "muster.selector" . }}
app.kubernetes.io/part-of: muster
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Of pods: without what changes with every version of the chart, since a change makes running pods outdated.
    No sidecar: meshes break connections between ranks by IP and keep Jobs from ending. */}}
{{- define "muster.podLabels" -}}
{{ include "muster.selector" . }}
app.kubernetes.io/part-of: muster
sidecar.istio.io/inject: "false"
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "muster.image" -}}
{{- $i := .Values.image -}}
{{- with $i.registry }}{{ . }}/{{ end }}{{ $i.repository }}
{{- if $i.digest }}@{{ $i.digest }}{{ else }}:{{ default .Chart.AppVersion $i.tag }}{{ end }}
{{- end -}}

{{/* (dict "root" . "part" "coordinator"): the account's name. */}}
{{- define "muster.serviceAccount" -}}
{{- $account := get .root.Values.serviceAccount .part -}}
{{- if $account.name -}}{{ $account.name }}
{{- else if $account.create -}}{{ include "muster.fullname" .root }}-{{ .part }}
{{- else -}}default{{- end -}}
{{- end -}}

{{/* (dict "root" . "part" "trainer" "name" given): the given PriorityClass, or the chart's own one. */}}
{{- define "muster.priorityClass" -}}
{{- if .name -}}{{ .name }}
{{- else if .root.Values.priorityClasses.create -}}
{{ .root.Release.Namespace }}-{{ include "muster.fullname" .root }}-{{ .part }}
{{- end -}}
{{- end -}}

{{/* IPv6 addresses stand in brackets before a port. */}}
{{- define "muster.listen" -}}
{{- $ip := .root.Values.network.listenAddress -}}
{{- if contains ":" $ip }}[{{ $ip }}]{{ else }}{{ $ip }}{{ end }}:{{ .port }}
{{- end -}}
