{{- define "mpu.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "mpu.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "mpu.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "mpu.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "mpu.selector" -}}
app.kubernetes.io/name: {{ include "mpu.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mpu.nri.selector" -}}
app.kubernetes.io/name: {{ include "mpu.name" . }}-nri
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mpu.nri.labels" -}}
{{ include "mpu.nri.selector" . }}
{{ include "mpu.common" . }}
{{- end -}}

{{- define "mpu.labels" -}}
{{ include "mpu.selector" . }}
{{ include "mpu.common" . }}
{{- end -}}

{{- define "mpu.common" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "mpu.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "mpu.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "mpu.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}
