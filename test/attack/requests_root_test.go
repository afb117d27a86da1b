package attack

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/weaken"
)

// requestAttempts are pulls and pods that are written so that the node's rules do not recognize them.
func requestAttempts() []attempt {
	all := []attempt{
		{name: "pull: the registry that the policy rejects", actor: jobAuthor, run: func(t *testing.T, w *world) result { return w.pullBanned(t, "127.0.0.1:", "") }},
		{name: "container: AppArmor of an unknown type", actor: jobAuthor, weak: weaken.EnumValues, run: func(t *testing.T, w *world) result {
			return w.unknownEnum(t, func(_ *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
				c.Linux.SecurityContext.Apparmor = &runtimeapi.SecurityProfile{ProfileType: 9}
			})
		}},
		{name: "pod: seccomp of an unknown type", actor: jobAuthor, weak: weaken.EnumValues, run: func(t *testing.T, w *world) result {
			return w.unknownEnum(t, func(p *runtimeapi.PodSandboxConfig, _ *runtimeapi.ContainerConfig) {
				p.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: 9}
			})
		}},
	}
	all = append(all, attempt{name: "exec: more rights than its container has", actor: jobAuthor, run: rightsOfAnExec})
	for name, spelling := range map[string]struct{ host, port string }{
		"a port with a zero":        {"127.0.0.1:", "0"},
		"a port with many zeros":    {"127.0.0.1:", "00000000"},
		"capital letters":           {"LOCALHOST:", ""},
		"an IPv6 address with IPv4": {"[::ffff:7f00:1]:", ""},
	} {
		all = append(all, attempt{name: "pull: the registry that the policy rejects, by " + name, actor: jobAuthor, weak: weaken.RegistryNames, run: func(t *testing.T, w *world) result {
			return w.pullBanned(t, spelling.host, spelling.port)
		}})
	}
	// The parser of names refuses this one, which no weakened build changes.
	return append(all, attempt{name: "pull: the registry that the policy rejects, by a dot at its end", actor: jobAuthor, run: func(t *testing.T, w *world) result {
		return w.pullBanned(t, "localhost.:", "")
	}})
}

// pullBanned pulls from the registry that the policy rejects, by a host's name with a colon and the registry's
// port after some zeros.
func (w *world) pullBanned(t *testing.T, host, zeros string) result {
	t.Helper()
	_, port, _ := strings.Cut(w.banned.Host, ":")
	ref := host + zeros + port + "/team/banned:v1"
	w.banned.Push("team/banned", "v1", imagetest.Image{Layers: [][]imagetest.File{{{Name: "file", Body: []byte("banned")}}}}.Build())
	w.banned.Requests()
	err := w.pull(t, ref)
	if err == nil {
		w.forget(t, ref)
		return is(reached, "%s was pulled", ref)
	}
	if asked := w.banned.Requests(); len(asked) > 0 {
		return is(reached, "the registry was asked for %q: %v", asked, err)
	}
	if !strings.Contains(err.Error(), "says reject") && status.Code(err) != codes.InvalidArgument {
		return is(unmade, "%s: %v", ref, err)
	}
	return is(refused, "%s: %v", ref, err)
}

// unknownEnum creates a pod and a container. set gives an enum in one of them a value that the node does not know.
func (w *world) unknownEnum(t *testing.T, set func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig)) result {
	t.Helper()
	pod := w.PodConfig("unknown")
	c := w.attacker("unknown", containerRoot)
	set(pod, c)
	made, err := w.CRI.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: pod})
	if err == nil {
		defer func() {
			req := &runtimeapi.StopPodSandboxRequest{PodSandboxId: made.GetPodSandboxId()}
			_, _ = w.CRI.StopPodSandbox(t.Context(), req)
			_, _ = w.CRI.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: req.GetPodSandboxId()})
		}()
		_, err = w.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: made.GetPodSandboxId(), Config: c, SandboxConfig: pod})
	}
	switch status.Code(err) {
	case codes.OK:
		return is(reached, "the pod and its container were made")
	case codes.InvalidArgument:
		return is(refused, "%v", err)
	}
	return is(unmade, "%v", err)
}

// rightsOfAnExec runs processes of other users in containers: root where the container has no capabilities, and a
// user where root has them. The control is root's exec in an ordinary container.
func rightsOfAnExec(t *testing.T, w *world) result {
	const none = "0000000000000000"
	rights := func(user string, flags ...string) string {
		w.jobs++
		name := fmt.Sprint("rights", w.jobs)
		w.must(t, append(append([]string{"run", "-d", "--name", name}, flags...), w.image, "/bin/sleep", "100000")...)
		defer func() { _, _ = w.CLI("rm", "-f", name) }()
		return one(w.must(t, "exec", "-u", user, name, "/bin/sh", "-c", "grep Cap /proc/self/status"))
	}
	if ordinary := rights("0"); strings.Contains(ordinary, "CapEff: "+none) {
		return is(unmade, "root's exec in an ordinary container has %s", ordinary)
	}
	var said []string
	for _, c := range []struct {
		user  string
		flags []string
	}{
		{"0", []string{"--cap-drop", "ALL"}}, {"0", []string{"--cap-drop", "ALL", "-u", "1000"}}, {"1000", nil}, {"1000", []string{"--privileged"}},
	} {
		got := rights(c.user, c.flags...)
		if !strings.Contains(got, "CapEff: "+none) || !strings.Contains(got, "CapPrm: "+none) {
			return is(reached, "an exec of user %s has, with %q, %s", c.user, c.flags, got)
		}
		said = append(said, fmt.Sprintf("user %s with %q: %s", c.user, c.flags, got))
	}
	return is(bounded, "%s", strings.Join(said, "; "))
}
