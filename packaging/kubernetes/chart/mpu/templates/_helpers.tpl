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

{{- /* With what stands behind it, a name has 63 characters at most: that is all that a label, or a Service's name, may have. */ -}}
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

{{- /* A release that was made before there was the value has none: `helm upgrade --reuse-values` takes no new defaults. */ -}}
{{- define "mpu.engine" -}}
{{- default "auto" .Values.engine -}}
{{- end -}}

{{- /* What the administrator wants of every container, privileged or not. A kubelet heeds no seccomp profile of a privileged one. */ -}}
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

{{- /* The profile as Kubernetes before 1.30 takes it, in an annotation. */ -}}
{{- define "mpu.appArmor.word" -}}
{{- get (dict "Unconfined" "unconfined" "RuntimeDefault" "runtime/default" "Localhost" (printf "localhost/%s" (default "" .localhostProfile))) .type -}}
{{- end -}}

{{- /* The label by which a node's operator chooses the engine there. The agent reads the same: crates/mpu/src/agent/label.rs. */ -}}
{{- define "mpu.engineLabel" -}}
mpu-project.github.io/engine
{{- end -}}

{{- /* The affinity of .values, and every one of .rules with each of its terms. Terms are alternatives: each of .alternatives makes its own. */ -}}
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

{{- /* The agent is on nodes whose engine may be a module, and goes before NVIDIA's GPU Operator unloads the driver. */ -}}
{{- define "mpu.agent.affinity" -}}
{{- $label := include "mpu.engineLabel" . -}}
{{- $engine := dict "key" $label "operator" "NotIn" "values" (list "notify") -}}
{{- if eq (include "mpu.engine" .) "notify" -}}
{{- $engine = dict "key" $label "operator" "In" "values" (list "auto" "module") -}}
{{- end -}}
{{- /* Operators before 26.7 have no label for others' clients. In the states before this one, jobs may still run there. */ -}}
{{- $upgrade := dict "key" "nvidia.com/gpu-driver-upgrade-state" "operator" "NotIn" "values" (list "pod-restart-required") -}}
{{- $client := "nvidia.com/gpu.deploy.client" -}}
{{- $clients := list (dict "key" $client "operator" "In" "values" (list "true")) (dict "key" $client "operator" "DoesNotExist") -}}
{{- include "mpu.affinity" (dict "values" .Values "rules" (list $engine $upgrade) "alternatives" $clients) -}}
{{- end -}}

{{- /* The plugin is on nodes whose engine may be the supervisor. It is no client of the driver. */ -}}
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
{{- /* Without comments: what stands in quotation marks stays. */ -}}
{{- $rules := regexReplaceAll `("[^"\n]*"|'[^'\n]*')|#[^\n]*` (default "" .Values.config) "${1}" -}}
{{- range regexFindAll `\bnamespace["']?\s*=\s*["'][a-z0-9-]+["']` $rules -1 -}}
{{- $names = append $names (regexFind `=.*` . | trimAll `= "'`) -}}
{{- end -}}
{{- toJson (uniq $names) -}}
{{- end -}}

{{- /* What the API server would refuse with words that name no value of ours. */ -}}
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
