package nomad

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// wire connects a network namespace to the world, as the CNI plugins of Nomad do for a group. n is the number of its range.
func wire(t *testing.T, path string, n int) {
	t.Helper()
	r := strings.NewReplacer("PATH", path, "NUM", strconv.Itoa(n))
	for _, line := range []string{
		"ip link add groupNUM type veth peer name eth0 netns PATH",
		"ip addr add 10.77.NUM.1/24 dev groupNUM",
		"ip link set groupNUM up",
		"nsenter --net=PATH ip addr add 10.77.NUM.2/24 dev eth0",
		"nsenter --net=PATH ip link set lo up",
		"nsenter --net=PATH ip link set eth0 up",
		"nsenter --net=PATH ip route add default via 10.77.NUM.1",
	} {
		networktest.Run(t, r.Replace(line))
	}
}

// groupTask is a task in the network of a group.
func (r *rig) groupTask(path, name, script string, config map[string]any) *nomaddriver.TaskConfig {
	r.t.Helper()
	t := r.given(name, script, config)
	t.NetworkIsolationSpec = &nomaddriver.NetworkIsolationSpec{Mode: nomaddriver.NetworkIsolationSpec_GROUP, Path: path}
	t.Dns = &nomaddriver.DNSConfig{Servers: []string{networktest.WorldDNS}}
	return t
}

// refusedTask asserts that a task does not start, with an error that says why.
func (r *rig) refusedTask(task *nomaddriver.TaskConfig, why string) {
	r.t.Helper()
	_, err := r.Driver.StartTask(r.t.Context(), &nomaddriver.StartTaskRequest{Task: task})
	if err == nil || !strings.Contains(err.Error(), why) {
		r.t.Errorf("%s: %v, want %s", task.GetName(), err, why)
	}
	if err == nil {
		r.destroy(task)
	}
}

const (
	notOwn   = "a network of the sandbox's own"
	another  = "uses the network of another one, whose list counts"
	nodeList = "the node's egress list for nomad cannot be enforced"
)

// TestGroupNetworksRefuseLists: the driver refuses a task with a list in a network that Nomad's plugins made.
func TestGroupNetworksRefuseLists(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.NewReachWorld(t)
		r := newRigOn(t, nodetest.Options{Config: networktest.ReachDNS}, map[string]any{"allow_caps": []string{"all"}})
		group := networktest.NewNamespace(t)
		wire(t, group.Path, 1)
		list := []string{networktest.ReachList}
		if out, result := r.said(r.groupTask(group.Path, "open", networktest.ReachScript, nil)); out != networktest.ReachedAll {
			t.Errorf("without a list: %q %v", out, result)
		}
		// A task that could change rules runs beside the others.
		beside := r.groupTask(group.Path, "beside", "sleep 1000", map[string]any{"cap_add": []string{"net_admin"}})
		r.start(beside)
		alias := filepath.Join(t.TempDir(), "alias")
		if err := os.Symlink(group.Path, alias); err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			path, why string
			config    map[string]any
		}{
			"listed":    {group.Path, notOwn, map[string]any{"egress": list}},
			"labelled":  {group.Path, notOwn, map[string]any{"labels": map[string]any{"longshore.egress": networktest.ReachList}}},
			"nothing":   {group.Path, notOwn, map[string]any{"egress": []string{"none"}}},
			"learns":    {group.Path, notOwn, map[string]any{"egress": []string{"learn"}}},
			"linked":    {alias, notOwn, map[string]any{"egress": list}},
			"node":      {"/proc/1/ns/net", notOwn, map[string]any{"egress": list}},
			"nodes-own": {group.Path, notOwn, map[string]any{"egress": list, "network_mode": "host"}},
			"joins":     {group.Path, notOwn, map[string]any{"egress": list, "network_mode": "task:beside"}},
		} {
			r.refusedTask(r.groupTask(c.path, name, networktest.ReachScript, c.config), c.why)
		}
		// Without the group's network the list holds.
		if out, result := r.said(r.groupTask(group.Path, "bridge", networktest.ReachScript, map[string]any{"network_mode": "bridge", "egress": list})); out != networktest.ReachedList {
			t.Errorf("on our bridge: %q %v, want %q", out, result, networktest.ReachedList)
		}
		if out, err := r.CLI("egress", "set", "--force", r.name(beside), networktest.ReachList); err == nil || !strings.Contains(err.Error(), "no network of its own") {
			t.Errorf("a list for a running task of the group: %v: %s", err, out)
		}
		r.destroy(beside)
		r.nothingLeft()
	})
}

// name returns the name or ID of a task's container.
func (r *rig) name(task *nomaddriver.TaskConfig) string {
	r.t.Helper()
	id, err := r.CLI("ps", "-a", "-q", "--no-trunc", "--filter", "label=com.hashicorp.nomad.task_name="+task.GetName())
	if err != nil || strings.TrimSpace(id) == "" {
		r.t.Fatalf("%s has no container: %v", task.GetName(), err)
	}
	return strings.TrimSpace(id)
}

// TestANetworkWithAListIsSharedUnderIt: a task in the network of another container is under that one's list, however the network
// is named, and cannot have a list or the capabilities to change it.
func TestANetworkWithAListIsSharedUnderIt(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.NewReachWorld(t)
		r := newRigOn(t, nodetest.Options{Config: networktest.ReachDNS}, map[string]any{"allow_caps": []string{"all"}, "allow_privileged": true})
		holder := r.given("holder", "sleep 1000", map[string]any{"network_mode": "bridge", "egress": []string{networktest.ReachList}})
		r.start(holder)
		pid, err := r.CLI("inspect", "-f", "{{.State.Pid}}", r.name(holder))
		if err != nil {
			t.Fatal(err, pid)
		}
		own := "/proc/" + strings.TrimSpace(pid) + "/ns/net"
		mounted := filepath.Join(t.TempDir(), "net")
		if err := os.WriteFile(mounted, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(own, mounted, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
		for name, path := range map[string]string{"sibling": "", "process": own, "mounted": mounted} {
			config := func(more ...any) map[string]any {
				m := map[string]any{}
				if path == "" {
					m["network_mode"] = "task:holder"
				}
				for i := 0; i < len(more); i += 2 {
					m[more[i].(string)] = more[i+1]
				}
				return m
			}
			if out, result := r.said(r.groupTask(path, name, networktest.ReachScript, config())); out != networktest.ReachedList {
				t.Errorf("%s: %q %v, want %q", name, out, result, networktest.ReachedList)
			}
			r.refusedTask(r.groupTask(path, name+"-list", "true", config("egress", []string{"internet"})), another)
			r.refusedTask(r.groupTask(path, name+"-label", "true", config("labels", map[string]any{"longshore.egress": "internet"})), another)
			r.refusedTask(r.groupTask(path, name+"-admin", "true", config("cap_add", []string{"net_admin"})), "CAP_NET_ADMIN")
			r.refusedTask(r.groupTask(path, name+"-privileged", "true", config("privileged", true)), "CAP_")
		}
		r.destroy(holder)

		// A list that comes later: the other task in the network may have capabilities that no list confines.
		holder = r.given("holder", "read line < /alloc/data/end", map[string]any{"network_mode": "bridge"})
		if err := unix.Mkfifo(filepath.Join(r.dir, allocID, "alloc/data/end"), 0o666); err != nil {
			t.Fatal(err)
		}
		r.start(holder)
		joined := r.given("joined", "sleep 1000", map[string]any{"network_mode": "task:holder", "cap_add": []string{"net_admin"}})
		r.start(joined)
		if err := os.WriteFile(filepath.Join(r.dir, allocID, "alloc/data/end"), []byte("end\n"), 0); err != nil {
			t.Fatal(err)
		}
		r.wait(holder.GetId())
		if out, err := r.CLI("egress", "set", "--force", r.name(holder), networktest.ReachList); err == nil || !strings.Contains(err.Error(), "created without one") {
			t.Errorf("a list beside a running task with CAP_NET_ADMIN: %v: %s", err, out)
		}
		r.destroy(joined)
		if out, err := r.CLI("egress", "set", "--force", r.name(holder), networktest.ReachList); err != nil {
			t.Errorf("a list when no program runs: %v: %s", err, out)
		}
		r.destroy(holder)
		r.nothingLeft()
	})
}

// TestTheNodesListForGroups: with a list for all sandboxes of Nomad, a group's network is under it if the agent makes it
// (create_network), and otherwise its tasks are refused.
func TestTheNodesListForGroups(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.NewReachWorld(t)
		config := networktest.ReachDNS + "[egress.face.nomad]\ndefault = [\"" + networktest.ReachList + "\"]\nexempt = [\"trusted=yes\"]\n"
		r := newRigOn(t, nodetest.Options{Config: config}, map[string]any{"create_network": true, "allow_caps": []string{"all"}})
		group := networktest.NewNamespace(t)
		wire(t, group.Path, 1)
		exempt := map[string]any{"labels": map[string]any{"trusted": "yes"}}
		for name, path := range map[string]string{"nomads": group.Path, "node": "/proc/1/ns/net"} {
			r.refusedTask(r.groupTask(path, name, networktest.ReachScript, nil), nodeList)
			r.refusedTask(r.groupTask(path, name, networktest.ReachScript, map[string]any{"egress": []string{networktest.ReachList}}), notOwn)
		}
		if out, result := r.said(r.groupTask(group.Path, "exempt", networktest.ReachScript, exempt)); out != networktest.ReachedAll {
			t.Errorf("exempt, in Nomad's network: %q %v", out, result)
		}

		made, err := r.Driver.CreateNetwork(t.Context(), &nomaddriver.CreateNetworkRequest{AllocId: allocID})
		if err != nil {
			t.Fatal(err)
		}
		path := made.GetIsolationSpec().GetPath()
		wire(t, path, 2)
		both := func(when string) {
			t.Helper()
			for name, config := range map[string]map[string]any{"first": nil, "exempted": exempt} {
				if out, result := r.said(r.groupTask(path, name+when, networktest.ReachScript, config)); out != networktest.ReachedList {
					t.Errorf("%s%s: %q %v, want %q", name, when, out, result, networktest.ReachedList)
				}
			}
		}
		both("-before")
		r.refusedTask(r.groupTask(path, "wider", "true", map[string]any{"egress": []string{"internet"}}), another)
		r.refusedTask(r.groupTask(path, "narrower", "true", map[string]any{"egress": []string{"none"}}), another)
		r.refusedTask(r.groupTask(path, "admin", "true", map[string]any{"cap_add": []string{"net_admin"}}), "CAP_NET_ADMIN")
		long := r.groupTask(path, "long", "sleep 1000", nil)
		r.start(long)
		if out, err := r.CLI("egress", "set", "--force", r.name(long), "internet"); err == nil || !strings.Contains(err.Error(), "no network of its own") {
			t.Errorf("another list by a task of the group: %v: %s", err, out)
		}
		r.Kill()
		r.Up()
		both("-after-death")
		if out, err := r.CLI("exec", "--force", r.name(long), "/bin/sh", "-c", networktest.ReachScript); out != networktest.ReachedList {
			t.Errorf("a task that the agent's death left: %q %v", out, err)
		}
		r.destroy(long)
		if _, err := r.Driver.DestroyNetwork(t.Context(), &nomaddriver.DestroyNetworkRequest{AllocId: allocID}); err != nil {
			t.Error(err)
		}
		r.nothingLeft()
	})
}
