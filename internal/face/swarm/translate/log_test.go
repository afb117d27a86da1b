package translate

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
)

func TestAFileHasItsOwnerAndItsGroup(t *testing.T) {
	for _, id := range [][2]string{{"", ""}, {"1000", "1000"}, {"1000", "1001"}, {"33", ""}, {"", "33"}, {"0", "7"}} {
		f, err := file(&swarmv1.FileTarget{Name: "pw", Uid: id[0], Gid: id[1]}, "/run/secrets")
		number := map[string]int{"": 0, "0": 0, "7": 7, "33": 33, "1000": 1000, "1001": 1001}
		if err != nil || f.UID != number[id[0]] || f.GID != number[id[1]] {
			t.Errorf("user %q, group %q: %d, %d, %v", id[0], id[1], f.UID, f.GID, err)
		}
	}
	for _, id := range [][2]string{{"web", ""}, {"", "web"}, {"-1", "0"}, {"0", "2147483648"}} {
		if _, err := file(&swarmv1.FileTarget{Name: "pw", Uid: id[0], Gid: id[1]}, "/run/secrets"); !errdefs.IsInvalidArgument(err) {
			t.Errorf("user %q, group %q: %v", id[0], id[1], err)
		}
	}
}

// TestAFileOfModeZeroKeepsIt: dockerd takes zero for a mode too, and its clients send one.
func TestAFileOfModeZeroKeepsIt(t *testing.T) {
	for _, mode := range []uint32{0, 0o444, 0o7777} {
		if f, err := file(&swarmv1.FileTarget{Name: "pw", Mode: mode}, "/run/secrets"); err != nil || f.Mode != mode {
			t.Errorf("mode %o is %o, %v", mode, f.Mode, err)
		}
	}
}

func logged(driver string, options map[string]string) *swarmv1.Task {
	return task(func(t *swarmv1.Task, c *swarmv1.ContainerSpec) {
		t.LogDriver = &swarmv1.Driver{Name: driver, Options: options}
		c.Labels = map[string]string{"tier": "web", "team": "a", "other": "x"}
		c.Env = []string{"REGION=eu", "ZONE=1", "SECRET=s"}
	})
}

// TestALogDriverWithAService: it gets the lines of a file, with the labels and variables that its options name.
func TestALogDriverWithAService(t *testing.T) {
	task := Task{Swarm: &swarmv1.Task{Spec: &swarmv1.TaskSpec{LogDriver: &swarmv1.Driver{Name: "fluentd", Options: map[string]string{
		"fluentd-address": "logs:1", "tag": "{{.Name}}", "env": "A", "cache-max-size": "1m",
	}}}}, spec: &swarmv1.ContainerSpec{Image: "app:1", Env: []string{"A=1", "B=2"}, Command: []string{"run"}, Args: []string{"x"}}}
	if err := task.readLog(); err != nil {
		t.Fatal(err)
	}
	if s := task.service; s.Name != "fluentd" || s.Image != "app:1" || s.Command != "run x" || len(s.Attributes) != 1 || s.Attributes["A"] != "1" || task.log.MaxBytes != 1<<20 || task.log.MaxFiles != logFiles {
		t.Errorf("%+v, %+v", s, task.log)
	}
	task.Swarm.Spec.LogDriver.Options["color"] = "red"
	if err := task.readLog(); err == nil || !strings.Contains(err.Error(), "unknown log opt 'color'") {
		t.Error(err)
	}
}

func TestLogOptionsNameTheAttributesOfEachLine(t *testing.T) {
	c := core.Container{Meta: core.Meta{ID: "0123456789abcdef"}, Image: "sha256:fedcba98765432100"}
	for _, x := range []struct {
		options map[string]string
		want    map[string]string
	}{
		{nil, map[string]string{}},
		{map[string]string{"labels": "tier,none"}, map[string]string{"tier": "web"}},
		{map[string]string{"labels-regex": "^te"}, map[string]string{"team": "a"}},
		{map[string]string{"env": "REGION,,NONE", "labels": "other"}, map[string]string{"REGION": "eu", "other": "x"}},
		{map[string]string{"env-regex": "^(REGION|ZONE)$"}, map[string]string{"REGION": "eu", "ZONE": "1"}},
		{map[string]string{"tag": "{{.ImageName}}/{{.ID}}"}, map[string]string{"tag": "example.com/app:1/0123456789ab"}},
		{map[string]string{"tag": "{{.FullID}} {{.ImageID}} {{.ContainerLabels.tier}}"}, map[string]string{"tag": "0123456789abcdef fedcba987654 web"}},
		{map[string]string{"tag": ""}, map[string]string{}},
		{map[string]string{"compress": "true", "mode": "non-blocking", "max-buffer-size": "4m", "max-size": "1m", "max-file": "3"}, map[string]string{}},
	} {
		asked := logged("", x.options)
		asked.GetSpec().GetContainer().Image = "example.com/app:1"
		a, err := Read(asked, theNode)
		if err != nil {
			t.Errorf("%v: %v", x.options, err)
			continue
		}
		list, err := a.LogAttributes(c)
		got := map[string]string{}
		for _, attr := range list {
			got[attr.GetKey()] = attr.GetValue()
		}
		if err != nil || !maps.Equal(got, x.want) {
			t.Errorf("%v: %v, %v, want %v", x.options, got, err, x.want)
		}
		if !slices.IsSortedFunc(list, func(a, b *swarmv1.LogAttr) int { return strings.Compare(a.GetKey(), b.GetKey()) }) {
			t.Errorf("%v: not sorted: %v", x.options, list)
		}
	}
}

func TestLogOptionsThatDockerRefuses(t *testing.T) {
	for _, x := range []struct {
		driver, option, value, text string
	}{
		{"local", "labels", "tier", "unknown log option labels of the log driver local"},
		{"local", "tag", "x", "unknown log option tag"},
		{"json-file", "max-sizes", "1", "unknown log option max-sizes"},
		{"", "compress", "perhaps", `compress "perhaps"`},
		{"", "mode", "fast", `mode "fast"`},
		{"", "max-buffer-size", "1m", "needs mode=non-blocking"},
		{"", "labels-regex", "(", "labels-regex"},
		{"", "env-regex", "[", "env-regex"},
		{"", "tag", "{{.Nothing}}", "log option tag"},
		{"", "tag", "{{", "log option tag"},
		{"", "tag", strings.Repeat("x", maxLogAttributes), "more than 8192 bytes"},
	} {
		if _, err := Read(logged(x.driver, map[string]string{x.option: x.value}), theNode); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), x.text) {
			t.Errorf("%s=%.20s: %v", x.option, x.value, err)
		}
	}
}

func TestHostGatewayInTheHostsOfATask(t *testing.T) {
	lines := func(t *swarmv1.Task, c *swarmv1.ContainerSpec) {
		c.Hosts = []string{"host-gateway node", "10.0.0.9 db"}
	}
	a, err := Read(task(lines), theNode)
	if err != nil {
		t.Fatal(err)
	}
	if hosts, err := a.hosts(); err != nil || !slices.Equal(hosts[core.HostGateway], []string{"node"}) || len(hosts) != 2 {
		t.Errorf("own network: %v, %v", hosts, err)
	}
	a, err = Read(task(func(t *swarmv1.Task, c *swarmv1.ContainerSpec) {
		lines(t, c)
		t.Networks = []*swarmv1.NetworkAttachment{network("host", "host")}
	}), theNode)
	if err != nil {
		t.Fatal(err)
	}
	if hosts, err := a.hosts(); err != nil || !slices.Equal(hosts["127.0.0.1"], []string{"node"}) || len(hosts) != 2 {
		t.Errorf("the node's network: %v, %v", hosts, err)
	}
}
