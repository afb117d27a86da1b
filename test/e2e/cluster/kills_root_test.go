package cluster

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
)

func killChecks() []check {
	return []check{
		{"the agent is killed under pods", agentKilled},
		{"the keeper is killed under pods", keeperKilled},
		{"agent and keeper are killed at once", bothKilled},
		{"the agent is killed while a Deployment rolls", killedInRollout},
		{"the agent is killed while a Job runs", killedInJob},
		{"the agent is killed under probes and logs", killedUnderLogs},
		{"kubelet is killed", kubeletKilled},
		{"kube-proxy is killed", proxyKilled},
		{"the agent is away until the node is not ready", agentAway},
	}
}

// life has the fields that stay the same while a container lives.
type life struct {
	id       string
	restarts int32
	pid      int
}

// life asks the API for a pod's container main, and its agent for its process.
func (s *space) life(t *testing.T, n *node, name string) life {
	t.Helper()
	c := state(s.wait(t, name, "is ready", ready), "main")
	id := strings.TrimPrefix(c.ContainerID, "longshore://")
	var info struct {
		Pid int `json:"pid"`
	}
	r, err := n.agent.CRI.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(r.GetInfo()["info"]), &info); err != nil || info.Pid == 0 {
		t.Fatalf("no process in %q: %v", r.GetInfo()["info"], err)
	}
	return life{id, c.RestartCount, info.Pid}
}

// livesThrough runs pods on a node, has something happen, and compares.
func (s *space) livesThrough(t *testing.T, n *node, happens func()) {
	t.Helper()
	before := map[string]life{}
	for i := range 3 {
		name := fmt.Sprintf("lives-%d", i)
		s.run(t, on(n, pod(name, peer())))
		before[name] = s.life(t, n, name)
	}
	happens()
	s.run(t, on(n, pod("afterwards", peer())))
	for name, want := range before {
		if got := s.life(t, n, name); got != want {
			t.Errorf("%s: %+v, was %+v", name, got, want)
		}
		if got := s.sh(t, name, "hostname"); got != name+"\n" {
			t.Errorf("exec in %s: %q", name, got)
		}
	}
	server := s.wait(t, "lives-0", "is ready", ready).Status.PodIP
	if got := s.ask(t, "afterwards", web(server, 8080)); !strings.HasPrefix(got, "lives-0 ") {
		t.Errorf("%q", got)
	}
}

func agentKilled(t *testing.T, s *space) {
	for _, n := range s.nodes {
		t.Run(n.name, func(t *testing.T) {
			s := s.namespace(t)
			s.livesThrough(t, n, func() {
				for range 3 {
					n.agent.Kill()
					n.agent.Up()
				}
			})
		})
	}
}

// killKeeper kills a node's keeper and waits for another.
func (n *node) killKeeper(t *testing.T) {
	t.Helper()
	old := n.agent.Processes("keeper")
	if len(old) == 0 {
		t.Fatalf("%s has no keeper", n.name)
	}
	for _, pid := range old {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "another keeper", func() bool {
		now := n.agent.Processes("keeper")
		return len(now) > 0 && now[0] != old[0]
	})
}

func keeperKilled(t *testing.T, s *space) {
	n := s.nodes[0]
	s.livesThrough(t, n, func() { n.killKeeper(t) })
}

func bothKilled(t *testing.T, s *space) {
	n := s.nodes[1]
	s.livesThrough(t, n, func() {
		n.agent.Kill()
		n.killKeeper(t)
		n.agent.Up()
	})
}

// killAll kills both agents, and then restarts them.
func (c *cluster) killAll() {
	for _, n := range c.nodes {
		n.agent.Kill()
	}
	for _, n := range c.nodes {
		n.agent.Up()
	}
}

func killedInRollout(t *testing.T, s *space) {
	s.create(t, s.ns, deployment(4, versionEnv(pod("roll", sleeper("main")), "0")))
	d := deployments(s.ns, "roll")
	waitFor(t, s.cluster, d, "has version 0", available(4))
	for v := 1; v <= 2; v++ {
		patch(t, s.cluster, d, setVersion(strconv.Itoa(v)))
		s.killAll()
		waitFor(t, s.cluster, d, fmt.Sprintf("has version %d", v), available(4))
	}
	if got := s.versions(t, "app=roll"); len(got) != 1 || got[0] != "2" {
		t.Errorf("the pods have %v", got)
	}
}

func killedInJob(t *testing.T, s *space) {
	s.create(t, s.ns, job(once("job", "sleep 1; echo done"), func(j *batchv1.JobSpec) { j.Completions, j.Parallelism = ptr.To(int32(12)), ptr.To(int32(4)) }))
	q := jobs(s.ns, "job")
	for _, n := range []int32{2, 6, 10} {
		waitFor(t, s.cluster, q, fmt.Sprintf("has %d done", n), func(j *batchv1.Job) bool { return j.Status.Succeeded >= n })
		s.killAll()
	}
	j := waitFor(t, s.cluster, q, "is over", func(j *batchv1.Job) bool { return over(j) != "" })
	if over(j) != batchv1.JobComplete || j.Status.Succeeded != 12 || j.Status.Failed != 0 {
		t.Errorf("%+v", j.Status)
	}
}

func killedUnderLogs(t *testing.T, s *space) {
	n := s.nodes[0]
	c := shell("main", `i=0; until [ -f /share/stop ]; do i=$((i+1)); echo line $i; sleep 0.02; done; echo end; `+idle)
	c.LivenessProbe = probed(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}, 10)
	s.run(t, on(n, shared(pod("logs", c))))
	before := s.life(t, n, "logs")
	for i := range 4 {
		s.said(t, "logs", "main", fmt.Sprintf("line %d\n", (i+1)*50))
		if i == 2 {
			n.killKeeper(t)
			continue
		}
		n.agent.Kill()
		n.agent.Up()
		// kubelet waits a moment before it looks for an agent again.
		eventually(t, "an exec", func() bool {
			_, err := s.try(t.Context(), "logs", "main", "true")
			return err == nil
		})
	}
	s.sh(t, "logs", "touch /share/stop")
	s.said(t, "logs", "main", "end\n")
	if got := s.life(t, n, "logs"); got != before {
		t.Errorf("%+v, was %+v", got, before)
	}
	for i, line := range strings.Split(strings.TrimSuffix(s.output(t, "logs", &corev1.PodLogOptions{}), "\nend\n"), "\n") {
		if line != fmt.Sprintf("line %d", i+1) {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
}

func kubeletKilled(t *testing.T, s *space) {
	n := s.nodes[1]
	s.livesThrough(t, n, func() {
		n.kubelet.down(syscall.SIGKILL)
		n.kubelet.up()
	})
}

func proxyKilled(t *testing.T, s *space) {
	s.run(t, on(s.nodes[1], pod("server", peer())))
	s.run(t, on(s.nodes[0], pod("client", peer())))
	url := web(s.expose(t).Spec.ClusterIP, 80)
	s.ask(t, "client", url)
	n := s.nodes[0]
	n.proxy.down(syscall.SIGKILL)
	if got := s.ask(t, "client", url); !strings.HasPrefix(got, "server ") {
		t.Errorf("while it is away: %q", got)
	}
	n.proxy.up()
	s.run(t, on(s.nodes[1], labelled(pod("other", peer()), "app", "server")))
	eventually(t, "the new pod answers too", func() bool {
		out, err := s.try(t.Context(), "client", "main", "peer", "ask", "-n", "20", url)
		return err == nil && strings.Contains(out, "other ")
	})
}

func agentAway(t *testing.T, s *space) {
	n := s.nodes[1]
	s.livesThrough(t, n, func() {
		n.agent.Kill()
		waitFor(t, s.cluster, nodes(n.name), "is not ready", func(n *corev1.Node) bool { return !nodeReady(n) })
		n.agent.Up()
		waitFor(t, s.cluster, nodes(n.name), "is ready again", nodeReady)
	})
}
