package translate_test

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/engineapi/translate"
	"github.com/longshore/longshore/internal/hub/engineapi/view"
)

// whole is a service with every setting, and wholeMessage is its translation.
const (
	whole = `{"Name": "web", "Labels": {"l": "v"}, "Mode": {"Replicated": {"Replicas": 3}},
		"UpdateConfig": {"Parallelism": 2, "Delay": 1000000000, "FailureAction": "rollback", "Monitor": 5000000000, "MaxFailureRatio": 0.25, "Order": "start-first"},
		"RollbackConfig": {"Parallelism": 0, "FailureAction": "continue", "MaxFailureRatio": 0, "Order": "stop-first"},
		"EndpointSpec": {"Mode": "dnsrr", "Ports": [{"Name": "p", "Protocol": "udp", "TargetPort": 53, "PublishedPort": 5353, "PublishMode": "host"}]},
		"TaskTemplate": {
			"ForceUpdate": 4, "Runtime": "container", "LogDriver": {"Name": "json-file", "Options": {"max-size": "1m"}}, "Networks": [{"Target": "host", "Aliases": ["web"]}],
			"Placement": {"Constraints": ["node.role==worker"], "MaxReplicas": 2, "Preferences": [{"Spread": {"SpreadDescriptor": "node.labels.a"}}], "Platforms": [{"Architecture": "amd64", "OS": "linux"}]},
			"RestartPolicy": {"Condition": "on-failure", "Delay": 0, "MaxAttempts": 3, "Window": 60000000000},
			"Resources": {"Limits": {"NanoCPUs": 500000000, "MemoryBytes": 64, "Pids": 10}, "Reservations": {"MemoryBytes": 32}, "SwapBytes": -1, "MemorySwappiness": 0},
			"ContainerSpec": {"Image": "a", "Labels": {"c": "d"}, "Command": ["/init"], "Args": ["run"], "Hostname": "h", "Env": ["A=1"], "Dir": "/d", "User": "1", "Groups": ["2"], "Init": true,
				"StopSignal": "INT", "TTY": true, "OpenStdin": true, "ReadOnly": true, "StopGracePeriod": 2000000000, "Hosts": ["10.0.0.1 a"], "Sysctls": {"a": "1"}, "CapabilityAdd": ["CAP_CHOWN"],
				"CapabilityDrop": ["ALL"], "Ulimits": [{"Name": "nofile", "Soft": 1, "Hard": -1}], "OomScoreAdj": -5, "DNSConfig": {"Nameservers": ["10.0.0.2"], "Search": ["s"], "Options": ["o"]},
				"Healthcheck": {"Test": ["CMD", "t"], "Interval": 1000000000, "Timeout": 2000000000, "StartPeriod": 3000000000, "StartInterval": 4000000000, "Retries": 5},
				"Privileges": {"SELinuxContext": {"Disable": true, "User": "u", "Role": "r", "Type": "t", "Level": "l"}, "Seccomp": {"Mode": "custom", "Profile": "e30="}, "AppArmor": {"Mode": "disabled"}, "NoNewPrivileges": true},
				"Secrets": [{"SecretID": "i", "SecretName": "n", "File": {"Name": "f", "UID": "0", "GID": "1", "Mode": 256}}],
				"Configs": [{"ConfigID": "i", "ConfigName": "n", "File": {"Name": "/f", "UID": "0", "GID": "1", "Mode": 292}}],
				"Mounts": [{"Type": "bind", "Source": "/a", "Target": "/b", "ReadOnly": true, "Consistency": "cached", "BindOptions": {"Propagation": "rslave", "NonRecursive": true, "CreateMountpoint": true, "ReadOnlyNonRecursive": true, "ReadOnlyForceRecursive": true}},
					{"Type": "volume", "Source": "v", "Target": "/v", "VolumeOptions": {"NoCopy": true, "Labels": {"a": "b"}, "Subpath": "s", "DriverConfig": {"Name": "local", "Options": {"type": "nfs"}}}},
					{"Type": "tmpfs", "Target": "/t", "TmpfsOptions": {"SizeBytes": 5, "Mode": 1023, "Options": [["noexec"]]}}]}}}`
	wholeMessage = `{"annotations": {"name": "web", "labels": {"l": "v"}}, "replicated": {"replicas": 3},
		"update": {"parallelism": 2, "delay": "1s", "failureAction": "ROLLBACK", "monitor": "5s", "maxFailureRatio": 0.25, "order": "START_FIRST"}, "rollback": {"failureAction": "CONTINUE"},
		"endpoint": {"mode": "DNSRR", "ports": [{"name": "p", "protocol": "UDP", "targetPort": 53, "publishedPort": 5353, "publishMode": "HOST"}]},
		"task": {
			"forceUpdate": 4, "logDriver": {"name": "json-file", "options": {"max-size": "1m"}}, "networks": [{"target": "host", "aliases": ["web"]}],
			"placement": {"constraints": ["node.role==worker"], "maxReplicas": 2, "preferences": [{"spread": {"spreadDescriptor": "node.labels.a"}}], "platforms": [{"architecture": "amd64", "os": "linux"}]},
			"restart": {"condition": "ON_FAILURE", "delay": "0s", "maxAttempts": 3, "window": "60s"},
			"resources": {"limits": {"nanoCpus": 500000000, "memoryBytes": 64}, "reservations": {"memoryBytes": 32}, "swapBytes": -1, "memorySwappiness": 0},
			"container": {"image": "a", "labels": {"c": "d"}, "command": ["/init"], "args": ["run"], "hostname": "h", "env": ["A=1"], "dir": "/d", "user": "1", "groups": ["2"], "init": true, "pidsLimit": 10,
				"stopSignal": "INT", "tty": true, "openStdin": true, "readOnly": true, "stopGracePeriod": "2s", "hosts": ["10.0.0.1 a"], "sysctls": {"a": "1"}, "capabilityAdd": ["CAP_CHOWN"],
				"capabilityDrop": ["ALL"], "ulimits": [{"name": "nofile", "soft": 1, "hard": -1}], "oomScoreAdj": -5, "dnsConfig": {"nameservers": ["10.0.0.2"], "search": ["s"], "options": ["o"]},
				"healthcheck": {"test": ["CMD", "t"], "interval": "1s", "timeout": "2s", "startPeriod": "3s", "startInterval": "4s", "retries": 5},
				"privileges": {"selinuxContext": {"disable": true, "user": "u", "role": "r", "type": "t", "level": "l"}, "seccomp": {"mode": "CUSTOM", "profile": "e30="}, "apparmor": {"mode": "DISABLED"}, "noNewPrivileges": true},
				"secrets": [{"secretId": "i", "secretName": "n", "file": {"name": "f", "uid": "0", "gid": "1", "mode": 256}}],
				"configs": [{"configId": "i", "configName": "n", "file": {"name": "/f", "uid": "0", "gid": "1", "mode": 292}}],
				"mounts": [{"type": "BIND", "source": "/a", "target": "/b", "readonly": true, "consistency": "CACHED", "bindOptions": {"propagation": "RSLAVE", "nonrecursive": true, "createmountpoint": true, "readonlynonrecursive": true, "readonlyforcerecursive": true}},
					{"type": "VOLUME", "source": "v", "target": "/v", "volumeOptions": {"nocopy": true, "labels": {"a": "b"}, "subpath": "s", "driverConfig": {"name": "local", "options": {"type": "nfs"}}}},
					{"type": "TMPFS", "target": "/t", "tmpfsOptions": {"sizeBytes": 5, "mode": 1023, "options": "[[\"noexec\"]]"}}]}}}`
)

// again shows a service and reads that again.
func again(t *testing.T, spec *swarmv1.ServiceSpec) *swarmv1.ServiceSpec {
	t.Helper()
	shown, err := json.Marshal(view.Spec(spec))
	if err != nil {
		t.Fatal(err)
	}
	back, err := translate.Service(shown)
	if err != nil {
		t.Fatalf("what is shown cannot be read: %v\n%s", err, shown)
	}
	return back
}

// TestAWholeService: every setting of a service is kept, and shown as it came.
func TestAWholeService(t *testing.T) {
	t.Parallel()
	want := new(swarmv1.ServiceSpec)
	if err := protojson.Unmarshal([]byte(wholeMessage), want); err != nil {
		t.Fatal(err)
	}
	got, err := translate.Service([]byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", protojson.Format(got), protojson.Format(want))
	}
	if back := again(t, got); !proto.Equal(back, want) {
		t.Errorf("shown and read again it is\n%s", protojson.Format(back))
	}
	old, err := translate.Service([]byte(`{"Name": "a", "Networks": [{"Target": "host"}], "TaskTemplate": {"ContainerSpec": {"Image": "a"}}}`))
	if err != nil || len(old.GetTask().GetNetworks()) != 1 || old.GetReplicated().GetReplicas() != 1 {
		t.Errorf("a service of an older client: %v, %v", old, err)
	}
}

func TestWhatCannotBe(t *testing.T) {
	t.Parallel()
	container := func(text string) string { return `{"TaskTemplate": {"ContainerSpec": {` + text + `}}}` }
	for body, want := range map[string]string{
		`{"Mode": {"Global": {}, "Replicated": {}}}`:                                                      "both global and replicated",
		`{"UpdateConfig": {"FailureAction": "cry"}}`:                                                      `UpdateConfig.FailureAction "cry" is unknown`,
		`{"UpdateConfig": {"FailureAction": "PAUSE"}}`:                                                    "is unknown",
		`{"UpdateConfig": {"Order": "first"}}`:                                                            "UpdateConfig.Order",
		`{"RollbackConfig": {"Delay": -1}}`:                                                               "RollbackConfig: times cannot be negative",
		`{"UpdateConfig": {"MaxFailureRatio": 2}}`:                                                        "from 0 to 1",
		`{"EndpointSpec": {"Mode": "mesh"}}`:                                                              "EndpointSpec.Mode",
		`{"EndpointSpec": {"Ports": [{"Protocol": "icmp"}]}}`:                                             "protocol",
		`{"EndpointSpec": {"Ports": [{"PublishMode": "all"}]}}`:                                           "mode of a port",
		`{"TaskTemplate": {"Runtime": "attachment"}}`:                                                     "runtime",
		`{"TaskTemplate": {"ContainerSpec": {}, "RestartPolicy": {"Condition": "never"}}}`:                "RestartPolicy.Condition",
		`{"TaskTemplate": {"ContainerSpec": {}, "RestartPolicy": {"Delay": -5}}}`:                         "negative",
		`{"TaskTemplate": {"ContainerSpec": {}, "Networks": [{"Target": "a", "DriverOpts": {"b": ""}}]}}`: "options of the driver",
		`{"TaskTemplate": {"ContainerSpec": {}, "Resources": {"Limits": {"NanoCPUs": -1}}}}`:              "Limits cannot be negative",
		`{"TaskTemplate": {"ContainerSpec": {}, "Resources": {"Reservations": {"MemoryBytes": -1}}}}`:     "Reservations cannot be negative",
		container(`"Isolation": "hyperv"`):                                                                "isolation",
		container(`"StopGracePeriod": -1`):                                                                "StopGracePeriod",
		container(`"DNSConfig": {"Nameservers": ["no address"]}`):                                         "cannot be read",
		container(`"Secrets": [{"SecretID": "a"}]`):                                                       "a secret without a target file",
		container(`"Secrets": [null]`):                                                                    "a secret without a target file",
		container(`"Configs": [{"ConfigID": "a", "Runtime": {}}]`):                                        "a config without a target file",
		container(`"Healthcheck": {"Retries": 5000000000}`):                                               "too large",
		container(`"Healthcheck": {"Interval": -1}`):                                                      "negative",
		container(`"Privileges": {"Seccomp": {"Mode": "x"}}`):                                             "Seccomp.Mode",
		container(`"Privileges": {"AppArmor": {"Mode": "x"}}`):                                            "AppArmor.Mode",
		container(`"Mounts": [{"Type": "image"}]`):                                                        "image",
		container(`"Mounts": [{"Type": "bind", "BindOptions": {"Propagation": "x"}}]`):                    "propagation",
		container(`"Mounts": [{"Type": "bind", "Consistency": "x"}]`):                                     "consistency",
	} {
		if _, err := translate.Service([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

// FuzzBodies reads any bytes as each of the bodies and as filters. An accepted service is the same when it is
// shown and read again.
func FuzzBodies(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte(`{"Name": "a", "Data": "AA==", "Templating": {"Name": "golang"}}`))
	f.Add([]byte(`{"Role": "worker", "Availability": "drain", "Labels": {"a": "b"}}`))
	f.Add([]byte(`{"Name": "default", "CAConfig": {"ForceRotate": 1}}`))
	f.Add([]byte(`{"label": {"a=b": true}, "name": ["c"]}`))
	f.Add([]byte(`eyJ1c2VybmFtZSI6ICJ1In0=`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if spec, err := translate.Service(data); err == nil {
			if back := again(t, spec); !proto.Equal(back, again(t, back)) {
				t.Errorf("%s\nis another service when it is shown again", protojson.Format(spec))
			}
		}
		_, _ = translate.Secret(data)
		_, _ = translate.Config(data)
		_, _ = translate.Node(data)
		_, _ = translate.Cluster(data)
		_, _, _ = translate.Network(data)
		_, _ = translate.Auth(string(data))
	})
}
