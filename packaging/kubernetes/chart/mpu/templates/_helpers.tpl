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

{{- /* A label's value and a Service's name have 63 characters at most, with their suffix. */ -}}
{{- define "mpu.nri.selector" -}}
app.kubernetes.io/name: {{ include "mpu.name" . | trunc 59 | trimSuffix "-" }}-nri
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

{{- /* An older release lacks this value: `helm upgrade --reuse-values` takes no new defaults. */ -}}
{{- define "mpu.engine" -}}
{{- default "auto" .Values.engine -}}
{{- end -}}

{{- /* The administrator's settings for every container. The kubelet ignores the seccomp profile of a privileged one. */ -}}
{{- define "mpu.confinement" -}}
{{- with .values.securityContext.seccompProfile }}
seccompProfile:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if and .appArmor.type .asField }}
appArmorProfile:
  {{- toYaml .appArmor | nindent 2 }}
{{- end }}
{{- with .values.securityContext.seLinuxOptions }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The profile's name in an annotation, for Kubernetes before 1.30. */ -}}
{{- define "mpu.appArmor.word" -}}
{{- get (dict "Unconfined" "unconfined" "RuntimeDefault" "runtime/default" "Localhost" (printf "localhost/%s" (default "" .localhostProfile))) .type -}}
{{- end -}}

{{- /* The node label that selects the engine. The agent reads it, too: crates/mpu/src/agent/label.rs. */ -}}
{{- define "mpu.engineLabel" -}}
mpu-project.github.io/engine
{{- end -}}

{{- /* The affinity of .values, with all of .rules in each of its terms. A term is repeated for each of .alternatives. */ -}}
{{- define "mpu.affinity" -}}
{{- $affinity := deepCopy (default dict .values.affinity) -}}
{{- $node := default dict $affinity.nodeAffinity -}}
{{- $required := default dict $node.requiredDuringSchedulingIgnoredDuringExecution -}}
{{- $rules := .rules -}}
{{- $alternatives := .alternatives -}}
{{- $terms := list -}}
{{- range $term := default (list dict) $required.nodeSelectorTerms -}}
{{- range $alternative := $alternatives -}}
{{- $all := concat (default list $term.matchExpressions) $rules (compact (list $alternative)) -}}
{{- $terms = append $terms (merge (dict "matchExpressions" $all) (deepCopy $term)) -}}
{{- end -}}
{{- end -}}
{{- $required = merge (dict "nodeSelectorTerms" $terms) $required -}}
{{- $node = merge (dict "requiredDuringSchedulingIgnoredDuringExecution" $required) $node -}}
{{- toYaml (merge (dict "nodeAffinity" $node) $affinity) -}}
{{- end -}}

{{- /* The agent runs on nodes whose engine may be the module, and leaves before NVIDIA's GPU Operator unloads the driver. */ -}}
{{- define "mpu.agent.affinity" -}}
{{- $label := include "mpu.engineLabel" . -}}
{{- $engine := dict "key" $label "operator" "NotIn" "values" (list "notify") -}}
{{- if eq (include "mpu.engine" .) "notify" -}}
{{- $engine = dict "key" $label "operator" "In" "values" (list "auto" "module") -}}
{{- end -}}
{{- /* Operators before 26.7 have no label for other clients. In earlier states of the upgrade, jobs may still run on the node. */ -}}
{{- $upgrade := dict "key" "nvidia.com/gpu-driver-upgrade-state" "operator" "NotIn" "values" (list "pod-restart-required") -}}
{{- $client := "nvidia.com/gpu.deploy.client" -}}
{{- $clients := list (dict "key" $client "operator" "In" "values" (list "true")) (dict "key" $client "operator" "DoesNotExist") -}}
{{- include "mpu.affinity" (dict "values" .Values "rules" (list $engine $upgrade) "alternatives" $clients) -}}
{{- end -}}

{{- /* The plugin runs on nodes whose engine may be the supervisor. It is not a client of the driver. */ -}}
{{- define "mpu.nri.affinity" -}}
{{- $label := include "mpu.engineLabel" . -}}
{{- $engine := dict "key" $label "operator" "NotIn" "values" (list "module") -}}
{{- if eq (include "mpu.engine" .) "module" -}}
{{- $engine = dict "key" $label "operator" "In" "values" (list "auto" "notify") -}}
{{- end -}}
{{- include "mpu.affinity" (dict "values" .Values "rules" (list $engine) "alternatives" (list dict)) -}}
{{- end -}}

{{- /* The namespaces of rules with a label, as JSON. */ -}}
{{- define "mpu.ruleNamespaces" -}}
{{- $names := list -}}
{{- /* Removes comments. A # in quotation marks stays. */ -}}
{{- $rules := regexReplaceAll `("[^"\n]*"|'[^'\n]*')|#[^\n]*` (default "" .Values.config) "${1}" -}}
{{- range regexFindAll `\bnamespace["']?\s*=\s*["'][a-z0-9-]+["']` $rules -1 -}}
{{- $names = append $names (regexFind `=.*` . | trimAll `= "'`) -}}
{{- end -}}
{{- toJson (uniq $names) -}}
{{- end -}}

{{- /* Refuses what the API server would refuse too, with messages that name the chart's values. */ -}}
{{- define "mpu.rollout" -}}
{{- with .Values.updateStrategy.rollingUpdate -}}
{{- $surge := toString (default 0 .maxSurge) -}}
{{- $down := toString (default 0 .maxUnavailable) -}}
{{- $none := list "0" "0%" -}}
{{- if and (has $surge $none) (has $down $none) -}}
{{- fail "updateStrategy.rollingUpdate: one of maxSurge and maxUnavailable must be more than 0" -}}
{{- end -}}
{{- if not (or (has $surge $none) (has $down $none)) -}}
{{- fail "updateStrategy.rollingUpdate: only one of maxSurge and maxUnavailable may be more than 0" -}}
{{- end -}}
{{- end -}}
{{- $own := include "mpu.labels" . | fromYaml -}}
{{- range $key, $value := .Values.podLabels -}}
{{- if hasKey $own $key -}}
{{- fail (printf "podLabels: %s is a label of the chart" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
