package swarm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// TestMountsAndTemplates: volumes with options over a tmpfs and a directory of the node, options
// of mounts, and secrets and configs that are templates.
func TestMountsAndTemplates(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t)
		id := r.join()
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "theirs"), []byte("of the node"), 0o644); err != nil {
			t.Fatal(err)
		}
		r.write("raw", "planted-secret")
		r.write("secret", `{{env "USER"}}:{{secret "pw"}}`)
		r.write("config", `{{.Service.Name}} {{.Task.Slot}} {{.Node.ID}}{{range $k, $v := .Service.Labels}} {{$k}}={{$v}}{{end}} {{secret "pw"}}`)
		r.docker("secret", "create", "pw", r.home+"/raw")
		r.docker("secret", "create", "--template-driver", "golang", "login", r.home+"/secret")
		r.docker("config", "create", "--template-driver", "golang", "conf", r.home+"/config")
		local := "volume-driver=local,volume-nocopy=true"
		r.create("web", r.ref, "--replicas", "2", "--label", "tier=front", "--env", "USER=u{{.Task.Slot}}",
			"--secret", "pw", "--secret", "login", "--config", "source=conf,target=/etc/conf",
			"--mount", "type=volume,source=mem,target=/mem,"+local+`,volume-opt=type=tmpfs,volume-opt=device=tmpfs,"volume-opt=o=size=1m,uid=7"`,
			"--mount", "type=volume,source=dir,target=/dir,"+local+",volume-opt=type=none,volume-opt=device="+dir+",volume-opt=o=bind",
			"--mount", "type=bind,source="+dir+",target=/ro,readonly",
			"--", "sh", "-c", "cat /run/secrets/login /etc/conf; echo; stat -f -c %T /mem; stat -c %u /mem; cat /dir/theirs /ro/theirs; echo >>/mem/lines; touch /ro/x || echo refused; sleep 1000")
		tasks := r.running("web", 2)
		for _, task := range tasks {
			slot := task.Name[strings.LastIndexByte(task.Name, '.')+1:]
			roottest.Eventually(t, "the task says what it has", func() bool { return strings.Contains(r.logs(task.ID), "refused") })
			out := r.logs(task.ID)
			for _, want := range []string{"u" + slot + ":planted-secret", "web " + slot + " " + id + " tier=front planted-secret", "tmpfs\n7\n", "of the nodeof the node"} {
				if !strings.Contains(out, want) {
					t.Errorf("task %s wrote %q, not %q", task.Name, out, want)
				}
			}
		}
		r.create("wrong", r.ref, "--restart-condition", "none", "--mount", "type=volume,source=mem,target=/mem,"+local+",volume-opt=type=tmpfs,volume-opt=device=tmpfs", "--", "true")
		if l := r.eventually("wrong", "it is rejected", func(l []psTask) bool { return in(l, "Rejected") == 1 }); !strings.Contains(l[0].Error, "other options") {
			t.Errorf("with other options: %q", l[0].Error)
		}
		r.create("share", r.ref, "--restart-condition", "none", "--mount", "type=volume,source=share,target=/s,"+local+`,volume-opt=type=cifs,volume-opt=device=//127.0.0.1/s,"volume-opt=o=username=u,password=planted-secret"`, "--", "true")
		if l := r.eventually("share", "it is rejected", func(l []psTask) bool { return in(l, "Rejected") == 1 }); strings.Contains(l[0].Error, "planted-secret") || !strings.Contains(l[0].Error, "cifs") {
			t.Errorf("without a server: %q", l[0].Error)
		}
		r.node.Check()
		for _, name := range []string{"web", "wrong", "share"} {
			r.docker("service", "rm", name)
		}
		r.none()
		r.node.Check()
		if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), "/volumes/swarm/") {
			t.Errorf("a volume is mounted, %v", err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "theirs")); err != nil || string(b) != "of the node" {
			t.Errorf("what the node has: %q, %v", b, err)
		}
		if log := r.node.LogTail(1 << 20); strings.Contains(log, "planted-secret") {
			t.Error("the agent's log tells a secret")
		}
	})
}
