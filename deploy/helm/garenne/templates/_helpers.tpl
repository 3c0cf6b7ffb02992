{{- define "garenne.name" -}}
{{- if contains "garenne" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-garenne" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{- /* Called with (list root component). The selector of pods, which is immutable in a Deployment. */ -}}
{{- define "garenne.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: garenne
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- if gt (len .) 2 }}
garenne/workers: {{ index . 2 }}
{{- end }}
{{- end -}}

{{- define "garenne.labels" -}}
{{ include "garenne.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end -}}

{{- /* Called with (list root program). */ -}}
{{- define "garenne.image" -}}
{{- $root := index . 0 -}}
{{- $digest := get $root.Values.image.digests (index . 1) -}}
{{- with $root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}garenne-{{ index . 1 }}
{{- if $digest }}@{{ $digest }}{{ else }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end -}}

{{- /* The restricted Pod Security Standard, with further restrictions. */ -}}
{{- define "garenne.podSecurity" -}}
automountServiceAccountToken: false
# The variables of service links would be read as settings.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "garenne.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{- /* The admin port answers as soon as the process has started, so no startup probe is needed. The kubelet does not
      verify certificates. */ -}}
{{- define "garenne.probes" -}}
{{- $scheme := ternary ", scheme: HTTPS" "" (not (empty .Values.adminTls.secretName)) -}}
livenessProbe:
  httpGet: {path: /livez, port: admin{{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: admin{{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end -}}

{{- /* Called with (list root component): not empty if the component's pods have the admin token. */ -}}
{{- define "garenne.hasAdminToken" -}}
{{- with (index . 0).Values.secrets.adminToken -}}
{{- if and .name (has (index $ 1) .components) }}true{{ end -}}
{{- end -}}
{{- end -}}

{{- /* Called with (list root component): not empty if the component's pods connect to the broker. */ -}}
{{- define "garenne.hasBroker" -}}
{{- if not (and (eq (index . 1) "gateway") (index . 0).Values.gateway.forward.url) }}true{{ end -}}
{{- end -}}

{{- /* Called with (list root component): not empty if the component's pods have files of garenne.volumes. */ -}}
{{- define "garenne.hasSecrets" -}}
{{- if or (include "garenne.hasBroker" .) (index . 0).Values.gateway.forward.token.secretName (include "garenne.hasAdminToken" .) }}true{{ end -}}
{{- end -}}

{{- /* Called with (list root component): the environment of every program. */ -}}
{{- define "garenne.env" -}}
{{- $component := index . 1 -}}
{{- $admin := include "garenne.hasAdminToken" . -}}
{{- $broker := include "garenne.hasBroker" . -}}
{{- with index . 0 -}}
- {name: GARENNE_PREFIX, value: {{ .Values.prefix | quote }}}
- {name: GARENNE_LOG_FORMAT, value: {{ .Values.logFormat }}}
- {name: GARENNE_ADMIN, value: "{{ .Values.listenAddress }}:9464"}
{{- if $broker }}
- {name: GARENNE_AMQP_URL_FILE, value: /run/secrets/garenne/amqp-url}
{{- end }}
{{- if .Values.settings }}
- {name: GARENNE_CONFIG, value: /etc/garenne/settings.toml}
{{- end }}
{{- if $admin }}
- {name: GARENNE_ADMIN_TOKEN_FILE, value: /run/secrets/garenne/admin-token}
{{- end }}
{{- if and .Values.adminTls.secretName (ne $component "topology") }}
- {name: GARENNE_ADMIN_TLS_CERT, value: /run/secrets/admin-tls/tls.crt}
- {name: GARENNE_ADMIN_TLS_KEY, value: /run/secrets/admin-tls/tls.key}
{{- end }}
{{- with .Values.traces }}
{{- if .endpoint }}
- {name: GARENNE_OTLP__ENDPOINT, value: {{ .endpoint | quote }}}
- {name: GARENNE_OTLP__RATIO, value: {{ .ratio | quote }}}
{{- end }}
{{- end }}
{{- with .Values.brokerTls }}
{{- if and $broker .secretName }}
- {name: GARENNE_AMQP_TLS__CA, value: /run/secrets/broker-tls/{{ .caKey }}}
{{- if .clientCertificate }}
- {name: GARENNE_AMQP_TLS__CERT, value: /run/secrets/broker-tls/tls.crt}
- {name: GARENNE_AMQP_TLS__KEY, value: /run/secrets/broker-tls/tls.key}
{{- end }}
{{- end }}
{{- end }}
{{- $hosts := .Values.allowedHosts }}
{{- if eq $component "console" }}
{{- $service := printf "%s-console" (include "garenne.name" .) }}
{{- $inside := printf "%s.%s.svc" $service .Release.Namespace }}
{{- $hosts = concat (list $service (printf "%s.%s" $service .Release.Namespace) $inside (printf "%s.%s" $inside .Values.clusterDomain)) $hosts }}
{{- end }}
{{- if and $hosts (ne $component "topology") }}
- {name: GARENNE_ALLOWED_HOSTS, value: {{ join "," $hosts | quote }}}
{{- end }}
{{- end -}}
{{- end -}}

{{- /* Called with (list root component). */ -}}
{{- define "garenne.mounts" -}}
{{- with (index . 0).Values -}}
{{- if include "garenne.hasSecrets" $ -}}
- {name: secrets, mountPath: /run/secrets/garenne, readOnly: true}
{{- end }}
{{- if and (include "garenne.hasBroker" $) .brokerTls.secretName }}
- {name: broker-tls, mountPath: /run/secrets/broker-tls, readOnly: true}
{{- end }}
{{- if and .adminTls.secretName (ne (index $ 1) "topology") }}
- {name: admin-tls, mountPath: /run/secrets/admin-tls, readOnly: true}
{{- end }}
{{- if .settings }}
- {name: settings, mountPath: /etc/garenne, readOnly: true}
{{- end }}
{{- end -}}
{{- end -}}

{{- /* The environment, mounts and volumes of programs that open the database over TLS. */ -}}
{{- define "garenne.postgresTls.env" -}}
{{- with .Values.postgresTls -}}
- {name: GARENNE_POSTGRES_TLS__CA, value: /run/secrets/postgres-tls/{{ .caKey }}}
{{- if .clientCertificate }}
- {name: GARENNE_POSTGRES_TLS__CERT, value: /run/secrets/postgres-tls/tls.crt}
- {name: GARENNE_POSTGRES_TLS__KEY, value: /run/secrets/postgres-tls/tls.key}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "garenne.postgresTls.mount" -}}
- {name: postgres-tls, mountPath: /run/secrets/postgres-tls, readOnly: true}
{{- end -}}

{{- define "garenne.postgresTls.volume" -}}
- name: postgres-tls
  secret: {secretName: {{ .Values.postgresTls.secretName }}, defaultMode: 288}
{{- end -}}

{{- /* The environment, mount and volume claims of a program with a spool. Called with the values of the spool. */ -}}
{{- define "garenne.spool.env" -}}
# Not the volume's root, which may have a folder of the file system.
- {name: GARENNE_SPOOL, value: /var/lib/garenne/spool}
- {name: GARENNE_SPOOL_MAX_BYTES, value: {{ .maxBytes }}}
- {name: GARENNE_SPOOL_MIN_FREE, value: {{ .minFree }}}
- {name: GARENNE_SPOOL_DRAIN_RATE, value: "{{ .drainRate }}"}
{{- end -}}

{{- define "garenne.spool.mount" -}}
- {name: spool, mountPath: /var/lib/garenne}
{{- end -}}

{{- define "garenne.spool.claims" -}}
volumeClaimTemplates:
  - metadata:
      name: spool
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .storageClassName }}
      storageClassName: {{ . }}
      {{- end }}
      resources:
        requests: {storage: {{ .size }}}
{{- end -}}

{{- /* Called with (list root secret (dict file key…) component): the user's Secret, if it has a name, and the admin token as
      files in one folder. */ -}}
{{- define "garenne.volumes" -}}
{{- $root := index . 0 -}}
{{- $component := list $root (index . 3) -}}
{{- if include "garenne.hasSecrets" $component -}}
- name: secrets
  projected:
    # 0440: readable by the pod's group.
    defaultMode: 288
    sources:
      {{- if index . 1 }}
      - secret:
          name: {{ index . 1 }}
          items:
            {{- range $file, $key := index . 2 }}
            - {key: {{ $key }}, path: {{ $file }}}
            {{- end }}
      {{- end }}
      {{- if include "garenne.hasAdminToken" $component }}
      {{- with $root.Values.secrets.adminToken }}
      - secret:
          name: {{ .name }}
          items:
            - {key: {{ .key }}, path: admin-token}
      {{- end }}
      {{- end }}
{{- end }}
{{- if and (include "garenne.hasBroker" $component) $root.Values.brokerTls.secretName }}
- name: broker-tls
  secret: {secretName: {{ $root.Values.brokerTls.secretName }}, defaultMode: 288}
{{- end }}
{{- if ne (index . 3) "topology" }}
{{- with $root.Values.adminTls.secretName }}
- name: admin-tls
  secret: {secretName: {{ . }}, defaultMode: 288}
{{- end }}
{{- end }}
{{- if $root.Values.settings }}
- name: settings
  configMap:
    name: {{ include "garenne.name" $root }}-settings
{{- end }}
{{- end -}}

{{- /* Called with (list root values): the scheduling of pods, and the checksum by which changed settings cause a rollout. */ -}}
{{- define "garenne.placing" -}}
{{- $values := index . 1 -}}
{{- with (index . 0).Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "garenne.podAnnotations" -}}
{{- $root := index . 0 -}}
{{- $all := deepCopy (index . 1).podAnnotations -}}
{{- if $root.Values.settings }}{{ $_ := set $all "checksum/settings" (sha256sum $root.Values.settings) }}{{ end -}}
{{- with $all }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Called with (list root name set): a worker set with its defaults. Limits that depend on several values are checked
      here, because the schema cannot express them. */ -}}
{{- define "garenne.workers" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
{{- $set := mergeOverwrite (deepCopy $root.Values.workerDefaults) (index . 2) -}}
{{- $scaling := $set.autoscaling -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "workers.%s.autoscaling.minReplicas: %d is over maxReplicas %d" $name (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- if and (eq $scaling.type "hpa") (lt (int $scaling.minReplicas) 1) -}}
{{- fail (printf "workers.%s.autoscaling.minReplicas: %d is under 1: without a worker a backlog takes for ever; the KEDA types can scale to 0" $name (int $scaling.minReplicas)) -}}
{{- end -}}
{{- if and (eq $scaling.type "keda-console") (not $root.Values.console.enabled) -}}
{{- fail (printf "workers.%s.autoscaling.type: keda-console needs console.enabled" $name) -}}
{{- end -}}
{{- if and (eq $scaling.type "keda-console") $root.Values.networkPolicy.enabled (not $root.Values.networkPolicy.consoleFrom) -}}
{{- fail (printf "networkPolicy.consoleFrom: empty, but workers.%s.autoscaling.type keda-console needs KEDA's namespace in it" $name) -}}
{{- end -}}
{{- if and (eq $scaling.type "keda-console") $root.Values.console.tls.secretName -}}
{{- fail (printf "workers.%s.autoscaling.type: keda-console cannot be combined with console.tls.secretName: KEDA asks over plain HTTP" $name) -}}
{{- end -}}
{{- if and (eq $scaling.type "keda-console") (not (int $scaling.minReplicas)) $root.Values.console.requireLogin -}}
{{- fail (printf "workers.%s.autoscaling.minReplicas: 0 with keda-console cannot be combined with console.requireLogin: KEDA reads the quarantine from a page that needs a login then" $name) -}}
{{- end -}}
{{- $most := int (last (splitList ".." $set.concurrency)) -}}
{{- if lt $most (int (first (splitList ".." $set.concurrency))) -}}
{{- fail (printf "workers.%s.concurrency: %s: the second number is under the first" $name $set.concurrency) -}}
{{- end -}}
{{- if gt $most (int $set.prefetch) -}}
{{- fail (printf "workers.%s.concurrency: %s: %d is over prefetch %d" $name $set.concurrency $most (int $set.prefetch)) -}}
{{- end -}}
{{- toYaml $set -}}
{{- end -}}

{{- /* Called with (list root deployment set): the number of replicas. With autoscaling the chart has no number of its own.
      But a manifest without the field would reset the Deployment to 1 when the one before had it, so an upgrade repeats
      the number that the Deployment has. `helm template` cannot look it up. */ -}}
{{- define "garenne.replicas" -}}
{{- $set := index . 2 -}}
{{- if eq $set.autoscaling.type "none" -}}
replicas: {{ $set.replicas }}
{{- else -}}
{{- with lookup "apps/v1" "Deployment" (index . 0).Release.Namespace (index . 1) -}}
replicas: {{ max (int .spec.replicas) (int $set.autoscaling.minReplicas) }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* A worker's termination grace period, by the worker's own sum (worker/engine/src/budget.rs): timeout + hard grace + 3 s to
      settle, + 2 s for the last spans if they are exported, + the margin. GARENNE_TERMINATION_GRACE has the same value, so
      that the worker checks it. */ -}}
{{- define "garenne.workerGrace" -}}
{{- $stop := (index . 0).shutdown -}}
{{- $spans := ternary 0 2 (empty (index . 1)) -}}
{{- $timeout := ternary 0 (int $stop.timeoutSeconds) (eq $stop.mode "hard") -}}
{{- add $timeout (int $stop.hardGraceSeconds) 3 $spans (int $stop.marginSeconds) -}}
{{- end -}}
