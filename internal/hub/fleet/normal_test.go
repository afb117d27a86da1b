package fleet

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// TestOneForm: equal meanings are the same service, and other settings do not change.
func TestOneForm(t *testing.T) {
	t.Parallel()
	parse := func(text string) *swarmv1.ServiceSpec {
		spec := new(swarmv1.ServiceSpec)
		if err := protojson.Unmarshal([]byte(text), spec); err != nil {
			t.Fatal(err)
		}
		return spec
	}
	for name, c := range map[string]struct{ from, to string }{
		"an image without a tag": {`{"task": {"container": {"image": "docker.io/library/busybox"}}}`, `{"task": {"container": {"image": "busybox:latest"}}, "update": {"parallelism": "1"}}`},
		"an image by its digest": {
			`{"task": {"container": {"image": "a.example/b@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}}`,
			`{"task": {"container": {"image": "a.example/b@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}, "update": {"parallelism": "1"}}`,
		},
		"what says nothing": {
			`{"task": {"container": {"image": "a:1", "dnsConfig": {}, "privileges": {}, "pullOptions": {}, "healthcheck": {}, "mounts": [{"target": "/a", "bindOptions": {}, "volumeOptions": {}, "tmpfsOptions": {}}]},
				"placement": {}, "resources": {"limits": {}, "reservations": {}}, "logDriver": {}}, "endpoint": {}}`,
			`{"task": {"container": {"image": "a:1", "mounts": [{"target": "/a"}]}}, "update": {"parallelism": "1"}}`,
		},
		"what says something": {
			`{"task": {"container": {"image": "a:1", "privileges": {"noNewPrivileges": true}}, "resources": {"limits": {"nanoCpus": "1"}, "reservations": {}}}, "update": {}}`,
			`{"task": {"container": {"image": "a:1", "privileges": {"noNewPrivileges": true}}, "resources": {"limits": {"nanoCpus": "1"}}}, "update": {}}`,
		},
		"orders without a meaning": {
			`{"task": {"container": {"image": "a:1", "env": ["B=1", "A=2", "AA", "A=1"], "hosts": ["::1 b", "127.0.0.1 b", "10.0.0.1 a"], "capabilityAdd": ["net_admin", "CAP_CHOWN", "CHOWN", "all"]}}, "update": {"parallelism": "1"}}`,
			`{"task": {"container": {"image": "a:1", "env": ["A=2", "A=1", "AA", "B=1"], "hosts": ["10.0.0.1 a", "::1 b", "127.0.0.1 b"], "capabilityAdd": ["ALL", "CAP_CHOWN", "CAP_NET_ADMIN"]}}, "update": {"parallelism": "1"}}`,
		},
		"ports and a config": {
			`{"task": {"container": {"image": "a:1", "configs": [{"file": {"name": "c"}}, {"file": {"name": "/d"}}]}}, "endpoint": {"mode": "VIP", "ports": [{"targetPort": 80, "publishMode": "HOST"}]}, "update": {"parallelism": "1"}}`,
			`{"task": {"container": {"image": "a:1", "configs": [{"file": {"name": "/c"}}, {"file": {"name": "/d"}}]}}, "endpoint": {"mode": "DNSRR", "ports": [{"targetPort": 80, "publishMode": "HOST"}]}, "update": {"parallelism": "1"}}`,
		},
		"no image":     {`{"task": {"container": {"image": "NO IMAGE"}}}`, `{"task": {"container": {"image": "NO IMAGE"}}, "update": {"parallelism": "1"}}`},
		"no container": {`{"task": {}}`, `{"task": {}, "update": {"parallelism": "1"}}`},
	} {
		spec, want := parse(c.from), parse(c.to)
		normalize(spec)
		if !proto.Equal(spec, want) {
			t.Errorf("%s:\n%v\nwant\n%v", name, spec, want)
		}
		normalize(spec)
		if !proto.Equal(spec, want) {
			t.Errorf("%s: it is another one when it is normalized again: %v", name, spec)
		}
	}
}

// TestADeclarationKeeps: settings beyond it stay.
func TestADeclarationKeeps(t *testing.T) {
	t.Parallel()
	service := func(image, auth string, force uint64) *swarmv1.ServiceSpec {
		c := &swarmv1.ContainerSpec{Image: image}
		if auth != "" {
			c.PullOptions = &swarmv1.ContainerSpec_PullOptions{RegistryAuth: auth}
		}
		return &swarmv1.ServiceSpec{Task: &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Container{Container: c}, ForceUpdate: force}}
	}
	before := service("a.example/b:1", "planted", 3)
	same, other := service("a.example/c:2", "", 0), service("b.example/b:1", "", 0)
	keep(same, before)
	keep(other, before)
	if !proto.Equal(same, service("a.example/c:2", "planted", 3)) || !proto.Equal(other, service("b.example/b:1", "", 3)) {
		t.Errorf("of the same registry: %v; of another one: %v", same, other)
	}
}
