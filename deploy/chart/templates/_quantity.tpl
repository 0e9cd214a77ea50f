{{/* Memory quantities like 64Gi, in MiB: memory-backed volumes are added to what ranks get. */}}

{{- define "muster.mebibytes" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $unit := regexFind "[A-Za-z]+$" . -}}
{{- if eq $unit "Ti" }}{{ mul $number 1048576 }}
{{- else if eq $unit "Gi" }}{{ mul $number 1024 }}
{{- else }}{{ $number }}{{ end -}}
{{- end -}}

{{/* What memory-backed volumes of a training pod can take, in MiB. */}}
{{- define "muster.volatile" -}}
{{- $sum := 0 -}}
{{- if eq .Values.storage.cache.type "memory" }}{{ $sum = add $sum (include "muster.mebibytes" .Values.storage.cache.size | int64) }}{{ end -}}
{{- if .Values.storage.shm }}{{ $sum = add $sum (include "muster.mebibytes" .Values.storage.shm | int64) }}{{ end -}}
{{- $sum -}}
{{- end -}}

{{/* The memory limit of a training pod. */}}
{{- define "muster.memory" -}}
{{- $volatile := include "muster.volatile" . | int64 -}}
{{- if $volatile }}{{ add (include "muster.mebibytes" .Values.trainer.memory | int64) $volatile }}Mi
{{- else }}{{ .Values.trainer.memory }}{{ end -}}
{{- end -}}
