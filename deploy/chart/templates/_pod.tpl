{{/* Parts of pods that several kinds share. */}}

{{- define "muster.podSecurityContext" -}}
runAsNonRoot: true
{{- with .Values.podSecurity.runAsUser }}
runAsUser: {{ int64 . }}
{{- end }}
{{- with .Values.podSecurity.runAsGroup }}
runAsGroup: {{ int64 . }}
{{- end }}
{{- with .Values.podSecurity.fsGroup }}
fsGroup: {{ int64 . }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* (dict "capabilities" list) */}}
{{- define "muster.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- with .capabilities }}
  add: {{ toJson . }}
  {{- end }}
{{- end -}}

{{/* The kubelet's probes: the three services of the health port. (dict "root" . "startupSeconds" 60) */}}
{{- define "muster.probes" -}}
startupProbe:
  grpc:
    port: {{ .root.Values.network.healthPort }}
    service: startup
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div (add (int .startupSeconds) 4) 5 }}
readinessProbe:
  grpc:
    port: {{ .root.Values.network.healthPort }}
    service: ready
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
# Says that the process answers, not that a step is done: a long step must not end it.
livenessProbe:
  grpc:
    port: {{ .root.Values.network.healthPort }}
  periodSeconds: 15
  timeoutSeconds: 10
  failureThreshold: 8
{{- end -}}

{{/* Who a pod is, from the downward API. */}}
{{- define "muster.identity" -}}
- name: MUSTER_POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: MUSTER_POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: MUSTER_POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
- name: MUSTER_POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: MUSTER_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- end -}}

{{- define "muster.logEnv" -}}
{{- with .Values.log.filter }}
- name: MUSTER_LOG
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Caches and the hub, of pods that train. */}}
{{- define "muster.trainingEnv" -}}
- name: HOME
  value: /tmp
- name: XDG_CACHE_HOME
  value: /cache
- name: HF_HOME
  value: /cache/huggingface
{{- if .Values.hub.offline }}
- name: HF_HUB_OFFLINE
  value: "1"
{{- end }}
{{- with .Values.hub.endpoint }}
- name: HF_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.hub.tokenSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.hub.tokenKey }}}}
{{- end }}
{{- with include "muster.volatilePaths" . }}
# Volumes in memory: what they can still take is not for the ranks.
- name: MUSTER_MEMORY_VOLUMES
  value: {{ . | quote }}
{{- end }}
{{- include "muster.logEnv" . }}
{{- with .Values.trainer.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "muster.volatilePaths" -}}
{{- $paths := list -}}
{{- if eq .Values.storage.cache.type "memory" }}{{ $paths = append $paths "/cache" }}{{ end -}}
{{- if .Values.storage.shm }}{{ $paths = append $paths "/dev/shm" }}{{ end -}}
{{- join ":" $paths -}}
{{- end -}}

{{/* Guaranteed: requests = limits for everything. */}}
{{- define "muster.trainingResources" -}}
{{- $amounts := include "muster.trainingAmounts" . -}}
requests:
  {{- $amounts | nindent 2 }}
limits:
  {{- $amounts | nindent 2 }}
{{- if eq .Values.trainer.cpuPlacement "dra" }}
claims:
  - name: cpus
{{- end }}
{{- end -}}

{{- define "muster.trainingAmounts" -}}
cpu: {{ .Values.trainer.cpus | toString | quote }}
memory: {{ include "muster.memory" . }}
{{- with .Values.trainer.hugepages2Mi }}
hugepages-2Mi: {{ . }}
{{- end }}
{{- end -}}

{{- define "muster.trainingMounts" -}}
- name: tmp
  mountPath: /tmp
- name: cache
  mountPath: /cache
- name: shared
  mountPath: {{ .Values.storage.shared.mountPath }}
{{- if .Values.storage.shm }}
- name: shm
  mountPath: /dev/shm
{{- end }}
{{- if .Values.trainer.hugepages2Mi }}
- name: hugepages
  mountPath: /hugepages
{{- end }}
{{- with .Values.trainer.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* All but "cache" of type claim, which a StatefulSet makes itself and a Job has as an ephemeral volume. */}}
{{- define "muster.trainingVolumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
{{- if eq .Values.storage.cache.type "disk" }}
- name: cache
  emptyDir: {sizeLimit: {{ .Values.storage.cache.size }}}
{{- else if eq .Values.storage.cache.type "memory" }}
- name: cache
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.storage.cache.size }}}
{{- else if eq .Values.mode "job" }}
- name: cache
  ephemeral:
    volumeClaimTemplate:
      spec: {{- include "muster.cacheClaim" . | nindent 8 }}
{{- end }}
- name: shared
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-shared" (include "muster.fullname" .)) .Values.storage.shared.existingClaim }}
{{- with .Values.storage.shm }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ . }}}
{{- end }}
{{- if .Values.trainer.hugepages2Mi }}
- name: hugepages
  emptyDir: {medium: HugePages-2Mi}
{{- end }}
{{- with .Values.trainer.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "muster.cacheClaim" -}}
accessModes: [ReadWriteOnce]
{{- with .Values.storage.cache.storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .Values.storage.cache.size }}
{{- end -}}

{{/* Where pods that train go, and how they get their cores. */}}
{{- define "muster.trainingPlacement" -}}
affinity:
  {{- with .Values.trainer.nodeAffinity }}
  nodeAffinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if eq .Values.trainer.podShape "node" }}
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "muster.selector" (dict "root" . "part" "trainer") | nindent 12 }}
  {{- else }}
  # Sockets of one machine side by side: their sums cross no network.
  podAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "muster.selector" (dict "root" . "part" "trainer") | nindent 14 }}
  {{- end }}
{{- with .Values.trainer.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.trainer.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "muster.priorityClass" (dict "root" . "part" "trainer" "name" .Values.trainer.priorityClassName) }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.trainer.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with .Values.trainer.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- if eq .Values.trainer.cpuPlacement "dra" }}
resourceClaims:
  - name: cpus
    resourceClaimTemplateName: {{ include "muster.fullname" . }}-cpus
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "muster.trainingAnnotations" -}}
{{- if eq .Values.trainer.cpuPlacement "balloons" }}
balloon.balloons.resource-policy.nri.io/container.trainer: {{ .Values.trainer.balloons.type }}
{{- end }}
linkerd.io/inject: disabled
{{- with .Values.trainer.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "muster.tlsArgs" -}}
{{- if .Values.tls.enabled }}
- --tls-ca=/etc/muster/tls/ca.crt
- --tls-cert=/etc/muster/tls/tls.crt
- --tls-key=/etc/muster/tls/tls.key
{{- else }}
- --insecure
{{- end }}
{{- end -}}

{{- define "muster.trainingSecurity" -}}
{{- $capabilities := list -}}
{{- /* Its presence opens mbind and set_mempolicy in the runtime's seccomp profile; the process itself stays without. */ -}}
{{- if eq .Values.trainer.memoryBinding "require" }}{{ $capabilities = list "SYS_NICE" }}{{ end -}}
{{- include "muster.securityContext" (dict "capabilities" $capabilities) -}}
{{- end -}}

{{/* Not empty if the coordinator does more for pods than find them. */}}
{{- define "muster.care" -}}
{{- $c := .Values.coordinator -}}
{{- if or $c.explainPods $c.protectPods $c.podEvents $c.scaling.enabled }}yes{{ end -}}
{{- end -}}
