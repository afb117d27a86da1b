package compose_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protojson"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/compose"
	"github.com/longshore/longshore/internal/hub/fleet"
)

func read(t *testing.T, text string) (map[string]*swarmv1.ServiceSpec, map[string][]byte, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, _, err := compose.Read(t.Context(), compose.Source{Path: filepath.Join(dir, "stack.yaml"), Data: []byte(text), Name: "shop", Env: map[string]string{"KEY": "from a variable", "TAG": "7"}})
	specs := map[string]*swarmv1.ServiceSpec{}
	for _, raw := range d.Services {
		s := new(swarmv1.ServiceSpec)
		if err := protojson.Unmarshal(raw, s); err != nil {
			t.Fatal(err)
		}
		specs[s.GetAnnotations().GetName()] = s
	}
	data := map[string][]byte{}
	for k, v := range d.Secrets {
		data["secret "+k] = v
	}
	for k, v := range d.Configs {
		data["config "+k] = v
	}
	return specs, data, err
}

func TestAService(t *testing.T) {
	t.Parallel()
	specs, data, err := read(t, `
x-mine: &all {a: b}
services:
  web:
    image: registry.example/web:${TAG}
    entrypoint: [/init]
    command: run --all
    environment: [B=2, A=1, EMPTY=]
    hostname: "{{.Node.Hostname}}"
    user: "1000:1000"
    working_dir: /srv
    init: true
    tty: true
    read_only: true
    stop_signal: SIGINT
    stop_grace_period: 1m30s
    labels: {l: v}
    cap_add: [NET_ADMIN]
    cap_drop: [ALL]
    sysctls: {net.core.somaxconn: 100}
    ulimits: {nofile: {soft: 1, hard: 2}, nproc: 3}
    extra_hosts: ["db:10.0.0.1"]
    dns: 10.0.0.53
    dns_search: [example]
    dns_opt: [ndots:1]
    secrets: [key, {source: other, target: /key, uid: "7", mode: 0400}]
    configs: [conf]
    ports: [{target: 80, published: "8080", protocol: tcp, mode: host}, {target: 53, protocol: udp, mode: host}]
    volumes:
      - data:/data:ro
      - {type: bind, source: /etc, target: /host, read_only: true, bind: {propagation: rslave}}
      - {type: tmpfs, target: /tmp, tmpfs: {size: 1000000, mode: 0700}}
    healthcheck: {test: "true", interval: 2s, timeout: 1s, retries: 4, start_period: 3s}
    logging: {driver: json-file, options: {max-size: 1m}}
    deploy:
      replicas: 3
      labels: {s: v}
      placement: {constraints: [node.role==worker], max_replicas_per_node: 2}
      resources: {limits: {cpus: "0.5", memory: 64M, pids: 9}, reservations: {memory: 32M}}
      restart_policy: {condition: on-failure, delay: 2s, max_attempts: 3, window: 1m}
      update_config: {parallelism: 2, order: start-first, failure_action: rollback, delay: 10s, monitor: 1m, max_failure_ratio: 0.25}
      rollback_config: {parallelism: 0, order: stop-first, failure_action: continue}
    networks: [all]
  each: {image: i, deploy: {mode: global}, healthcheck: {disable: true}, network_mode: host}
networks: {all: {external: true, name: host}}
volumes: {data: }
secrets: {key: {file: key}, other: {environment: KEY}}
configs: {conf: {content: "some text"}}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := new(swarmv1.ServiceSpec)
	if err := protojson.Unmarshal([]byte(`{
		"annotations": {"name": "web", "labels": {"s": "v"}}, "replicated": {"replicas": 3}, "rollback": {"failureAction": "CONTINUE"},
		"update": {"parallelism": 2, "order": "START_FIRST", "failureAction": "ROLLBACK", "delay": "10s", "monitor": "60s", "maxFailureRatio": 0.25},
		"endpoint": {"mode": "DNSRR", "ports": [{"targetPort": 80, "publishedPort": 8080, "publishMode": "HOST"}, {"protocol": "UDP", "targetPort": 53, "publishMode": "HOST"}]},
		"task": {
			"networks": [{"target": "host"}], "logDriver": {"name": "json-file", "options": {"max-size": "1m"}}, "placement": {"constraints": ["node.role==worker"], "maxReplicas": 2},
			"resources": {"limits": {"nanoCpus": 500000000, "memoryBytes": 67108864}, "reservations": {"memoryBytes": 33554432}},
			"restart": {"condition": "ON_FAILURE", "delay": "2s", "maxAttempts": 3, "window": "60s"},
			"container": {
				"image": "registry.example/web:7", "labels": {"l": "v"}, "command": ["/init"], "args": ["run", "--all"], "hostname": "{{.Node.Hostname}}", "env": ["A=1", "B=2", "EMPTY="],
				"dir": "/srv", "user": "1000:1000", "init": true, "tty": true, "readOnly": true, "stopSignal": "SIGINT", "stopGracePeriod": "90s", "capabilityAdd": ["NET_ADMIN"],
				"capabilityDrop": ["ALL"], "sysctls": {"net.core.somaxconn": "100"}, "ulimits": [{"name": "nofile", "soft": 1, "hard": 2}, {"name": "nproc", "soft": 3, "hard": 3}],
				"hosts": ["10.0.0.1 db"], "dnsConfig": {"nameservers": ["10.0.0.53"], "search": ["example"], "options": ["ndots:1"]}, "pidsLimit": 9,
				"secrets": [{"secretName": "key", "file": {"name": "key", "uid": "0", "gid": "0", "mode": 292}}, {"secretName": "other", "file": {"name": "/key", "uid": "7", "gid": "0", "mode": 256}}],
				"configs": [{"configName": "conf", "file": {"name": "/conf", "uid": "0", "gid": "0", "mode": 292}}],
				"mounts": [{"type": "VOLUME", "source": "shop_data", "target": "/data", "readonly": true, "volumeOptions": {"labels": {"com.docker.stack.namespace": "shop"}}}, {"source": "/etc", "target": "/host", "readonly": true, "bindOptions": {"propagation": "RSLAVE"}},
					{"type": "TMPFS", "target": "/tmp", "tmpfsOptions": {"sizeBytes": 1000000, "mode": 448}}],
				"healthcheck": {"test": ["CMD-SHELL", "true"], "interval": "2s", "timeout": "1s", "retries": 4, "startPeriod": "3s"}
			}
		}
	}`), want); err != nil {
		t.Fatal(err)
	}
	if got := protojson.Format(specs["web"]); got != protojson.Format(want) {
		t.Errorf("got  %s\nwant %s", got, protojson.Format(want))
	}
	if e := specs["each"]; e.GetGlobal() == nil || e.GetTask().GetContainer().GetHealthcheck().GetTest()[0] != "NONE" || e.GetUpdate().GetParallelism() != 1 ||
		e.GetTask().GetNetworks()[0].GetTarget() != "host" {
		t.Errorf("each: %v", e)
	}
	if string(data["secret key"]) != "from a file" || string(data["secret other"]) != "from a variable" || string(data["config conf"]) != "some text" || len(data) != 3 {
		t.Errorf("data: %q", data)
	}
}

// TestWhatIsThereAlready is named by the file, with the line that says so.
func TestWhatIsThereAlready(t *testing.T) {
	t.Parallel()
	d, _, err := compose.Read(t.Context(), compose.Source{Path: "stack.yaml", Name: "shop", Data: []byte(`
services: {web: {image: i, secrets: [key, other], configs: [{source: conf, target: /c}]}}
secrets:
  key: {external: true}
  other:
    external: true
    name: shared_other
configs:
  conf: {external: true, name: "conf-7"}
`)})
	if err != nil {
		t.Fatal(err)
	}
	if want := (map[string]fleet.External{"key": {Name: "key", At: "stack.yaml:4"}, "other": {Name: "shared_other", At: "stack.yaml:5"}}); !maps.Equal(d.ExternalSecrets, want) || len(d.Secrets) > 0 {
		t.Errorf("secrets %v and %v", d.ExternalSecrets, d.Secrets)
	}
	if want := (map[string]fleet.External{"conf": {Name: "conf-7", At: "stack.yaml:9"}}); !maps.Equal(d.ExternalConfigs, want) || len(d.Configs) > 0 {
		t.Errorf("configs %v and %v", d.ExternalConfigs, d.Configs)
	}
}

// TestWhatIsNotPossible is refused by its name, and where it is a key by its line.
func TestWhatIsNotPossible(t *testing.T) {
	t.Parallel()
	service := func(text string) string { return "services:\n  web:\n    image: i\n    " + text + "\n" }
	for text, want := range map[string]string{
		"":                                 "declares nothing",
		"- a":                              "",
		"services: [":                      "",
		"networks: {a: {driver: overlay}}": ":1: networks.a.driver is not possible here",
		service("networks: [a]\nnetworks:\n  a: {}"):                                                      ":6: networks.a is not possible here: a network is external",
		service("networks: [a]\nnetworks:\n  a: {external: true, name: b}"):                               ":6: networks.a is not possible here: a network is external",
		service("networks: [host, bridge]\nnetworks: {host: {external: true}, bridge: {external: true}}"): ":4: services.web.networks is not possible here: a service has one network",
		service("networks: {host: {aliases: [a]}}\nnetworks: {host: {external: true}}"):                   ":4: services.web.networks.host.aliases is not possible here",
		service("network_mode: none"):                                                                     ":4: services.web.network_mode \"none\" is not possible here",
		service("network_mode: service:other"):                                                            "",
		"services:\n  web: {build: .}":                                                                    ":2: services.web.build is not possible here",
		"include: [other.yaml]":                                                                           ":1: include is not possible here",
		service("extends: {service: x}"):                                                                  ":4: services.web.extends is not possible here",
		service("privileged: true"):                                                                       ":4: services.web.privileged is not possible here",
		service("<<: {privileged: true}"):                                                                 ":4: services.web.privileged is not possible here: write cap_add",
		service("networks: [a]"):                                                                          "undefined network a",
		service("env_file: .env"):                                                                         ".env",
		service("env_file: [{path: a, other: b}]"):                                                        ":4: services.web.env_file[0].other is not possible here",
		service("mem_limit: 1g"):                                                                          ":4: services.web.mem_limit is not possible here: write deploy.resources.limits.memory",
		service("scale: 2"):                                                                               "write deploy.replicas",
		"a: &a {<<: *a}":                                                                                  "",
		service("ports: [\"80:80\"]"):                                                                     "port 80: only the mode host is possible",
		service("ports: [{target: 80, published: \"80-90\", mode: host}]"):                                "is not a number",
		service("ports: [{target: 80, name: x, mode: host}]"):                                             ":4: services.web.ports[0].name is not possible here",
		service("volumes: [{type: npipe, source: a, target: /a}]"):                                        "npipe",
		service("volumes: [{type: volume, target: /a, volume: {labels: {a: b}}}]"):                        ":4: services.web.volumes[0].volume.labels is not possible here",
		service("deploy: {mode: global, replicas: 2}"):                                                    "a global service cannot have replicas",
		service("deploy: {mode: replicated-job}"):                                                         "the mode \"replicated-job\" is not possible",
		service("deploy: {replicas: -1}"):                                                                 "",
		service("deploy: {update_config: {order: first}}"):                                                "update_config.order",
		service("deploy: {update_config: {failure_action: panic}}"):                                       "the failure_action \"panic\" is none of",
		service("deploy: {rollback_config: {failure_action: rollback}}"):                                  "a rollback that fails is not rolled back",
		service("deploy: {endpoint_mode: vip}"):                                                           "deploy.endpoint_mode is not possible here",
		service("deploy: {restart_policy: {condition: sometimes}}"):                                       "sometimes",
		service("secrets: [nothing]"):                                                                     "nothing",
		"secrets: {a: {file: key, name: b}}":                                                              ":1: secrets.a.name is not possible here",
		"configs:\n  a: {content: x, name: b}":                                                            ":2: configs.a.name is not possible here",
		"secrets: {a: {file: key, external: true}}":                                                       ":1: secrets.a.external is not possible here: the file also has its content",
		"secrets: {a: {environment: UNSET}}":                                                              "UNSET",
		"secrets: {a: {file: missing}}":                                                                   "missing",
		"volumes: {a: {driver: nfs}}":                                                                     ":1: volumes.a.driver is not possible here",
	} {
		_, _, err := read(t, text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		} else if strings.Contains(want, "not possible here") && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v is no invalid argument", text, err)
		}
	}
}

// TestAllRefusalsAreNamed: a user mends a file in one go.
func TestAllRefusalsAreNamed(t *testing.T) {
	t.Parallel()
	_, _, err := read(t, `
services:
  web: {image: i, mem_limit: 1g, privileged: true, networks: [a], ports: ["80:80"]}
  db: {image: i, container_name: db, deploy: {mode: replicated-job}, volumes: [{type: npipe, source: a, target: /a}]}
networks: {a: {driver: overlay}}
secrets: {s: {file: missing}}
`)
	for _, want := range []string{":3: services.web.mem_limit is", ":3: services.web.privileged is", "service web: port 80", ":4: services.db.container_name is", "service db: mounts", ":5: networks.a.driver is", ":5: networks.a is", "secret s:"} {
		if err == nil || strings.Count(err.Error(), want) != 1 {
			t.Errorf("%q is not named once: %v", want, err)
		}
	}
}

// TestWhatDockersStackDeployTakes is taken: files of variables, merge keys, and keys without
// effect, with a note.
func TestWhatDockersStackDeployTakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "vars"), []byte("A=file\nB=file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, notes, err := compose.Read(t.Context(), compose.Source{Path: filepath.Join(dir, "stack.yaml"), Name: "shop", Env: map[string]string{"SET": "x"}, Data: []byte(`
x-all: &all
  image: "i:${SET}${UNSET}${DEFAULT:-d}"
  restart: always
  env_file: vars
services:
  web:
    <<: *all
    environment: {B: own, C: "$UNSET"}
    expose: ["80"]
    extra_hosts: ["up:host-gateway"]
  db:
    <<: [*all]
`)})
	if err != nil {
		t.Fatal(err)
	}
	var specs []*swarmv1.ServiceSpec
	for _, raw := range d.Services {
		s := new(swarmv1.ServiceSpec)
		if err := protojson.Unmarshal(raw, s); err != nil {
			t.Fatal(err)
		}
		specs = append(specs, s)
	}
	db, web := specs[0].GetTask().GetContainer(), specs[1].GetTask().GetContainer()
	if want := []string{"A=file", "B=own", "C="}; !slices.Equal(web.GetEnv(), want) || web.GetImage() != "i:xd" {
		t.Errorf("web: %q, %s", web.GetEnv(), web.GetImage())
	}
	if want := []string{"A=file", "B=file"}; !slices.Equal(db.GetEnv(), want) || db.GetImage() != "i:xd" {
		t.Errorf("db: %q, %s", db.GetEnv(), db.GetImage())
	}
	for _, want := range []string{":4: services.web.restart is ignored: deploy.restart_policy", "services.db.restart is ignored", ":10: services.web.expose is ignored", "the variable UNSET is not set", "up is the address of the task's node"} {
		if !slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, want) }) {
			t.Errorf("no note of %q: %q", want, notes)
		}
	}
	if len(notes) != 5 {
		t.Errorf("%d notes: %q", len(notes), notes)
	}
}

// FuzzRead: a file is a declaration, or refused.
func FuzzRead(f *testing.F) {
	f.Add("services: {web: {image: i, deploy: {replicas: 2}}}")
	f.Add("a: &a [*a]")
	f.Add("services: {web: {image: i, ports: [{target: 1, mode: host}], volumes: [a:/b]}}")
	f.Fuzz(func(t *testing.T, text string) {
		d, _, err := compose.Read(t.Context(), compose.Source{Path: "/nowhere/stack.yaml", Data: []byte(text), Name: "shop"})
		if err == nil && d.Name != "shop" {
			t.Errorf("a declaration of %q", d.Name)
		}
	})
}
