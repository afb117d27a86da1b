package swarm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/beneath/beneathtest"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestATaskMountsOntoLinksThatLeadNowhere: a bind mount, a secret, and the files that each task gets work on links of
// the image without targets.
func TestATaskMountsOntoLinksThatLeadNowhere(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n, m := nodetest.Start(t, nodetest.Options{Config: "[face.swarm]\nenabled = true\n"}), swarmtest.New(t)
		files, err := imagetest.Busybox("/bin/busybox", nodetest.Applets...)
		if err != nil {
			t.Skipf("no busybox-static: %v", err)
		}
		files = slices.DeleteFunc(files, func(f imagetest.File) bool { return f.Name == "run/" })
		for name, target := range map[string]string{"etc/resolv.conf": "../run/systemd/resolve/stub-resolv.conf", "etc/localtime": "/zoneinfo/UTC", "var/run": "/run"} {
			files = append(files, imagetest.File{Name: name, Link: target})
		}
		built := imagetest.Image{Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{Env: []string{"PATH=/bin"}}}.Build()
		image := imagetest.NewRegistry(t).Push("linked", "latest", built)
		file := filepath.Join(t.TempDir(), "UTC")
		if err := os.WriteFile(file, []byte("zone\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := n.CLI("swarm", "join", m.Addr, "--token", m.Token); err != nil {
			t.Fatal(err)
		}
		m.Change(func(_ map[string]*swarmv1.Task, secrets map[string]*swarmv1.Secret, _ map[string]*swarmv1.Config) {
			secrets["s"] = &swarmv1.Secret{Id: "s", Spec: &swarmv1.SecretSpec{Data: []byte("open sesame\n")}}
		})
		task := swarmtest.Task("linked", image, "sh", "-c", "cat /zoneinfo/UTC /run/secrets/pw && test -f /etc/resolv.conf && echo ok")
		c := task.GetSpec().GetContainer()
		c.Mounts = []*swarmv1.Mount{{Type: swarmv1.Mount_BIND, Source: file, Target: "/etc/localtime", Readonly: true}}
		c.Secrets = []*swarmv1.SecretReference{{SecretId: "s", SecretName: "pw", Target: &swarmv1.SecretReference_File{File: &swarmv1.FileTarget{Name: "/var/run/secrets/pw", Mode: 0o400}}}}
		m.Assign(task)
		m.Reaches("linked", swarmv1.TaskState_COMPLETE)
		if out, err := n.CLI("logs", "linked"); err != nil || out != "zone\nopen sesame\nok\n" {
			t.Errorf("%q, %v", out, err)
		}
		if _, err := os.Stat("/zoneinfo"); err == nil {
			t.Error("the target of a link was made on the host")
		}
	})
}

// TestATaskMountsOntoEachLinkThatLeadsNowhere: the table of such links.
func TestATaskMountsOntoEachLinkThatLeadsNowhere(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n, m := nodetest.Start(t, nodetest.Options{Config: "[face.swarm]\nenabled = true\n"}), swarmtest.New(t)
		image, dir := nodetest.DanglingImage(t)
		if _, err := n.CLI("swarm", "join", m.Addr, "--token", m.Token); err != nil {
			t.Fatal(err)
		}
		assign := func(name string, list []beneathtest.Dangling, script string) {
			task := swarmtest.Task(name, image, "sh", "-c", script)
			task.Spec.Restart = &swarmv1.RestartPolicy{Condition: swarmv1.RestartPolicy_NONE}
			for _, d := range list {
				c := task.GetSpec().GetContainer()
				c.Mounts = append(c.Mounts, &swarmv1.Mount{Type: swarmv1.Mount_BIND, Source: d.Source(dir), Target: d.Mount, Readonly: true})
			}
			m.Assign(task)
		}
		list, script, want := beneathtest.DanglingMounts()
		assign("all", list, script)
		m.Reaches("all", swarmv1.TaskState_COMPLETE)
		if out, err := n.CLI("logs", "all"); err != nil || out != want {
			t.Errorf("%q, %v, want %q", out, err, want)
		}
		for i, d := range beneathtest.DanglingRefused() {
			name := fmt.Sprintf("refused%d", i)
			assign(name, []beneathtest.Dangling{d}, "true")
			m.Until(name+" has ended", func() bool {
				list := m.Statuses(name)
				return len(list) > 0 && list[len(list)-1].GetState() > swarmv1.TaskState_RUNNING
			})
			if list := m.Statuses(name); list[len(list)-1].GetState() == swarmv1.TaskState_COMPLETE {
				t.Errorf("%s was not refused: %v", d.Name, list)
			}
		}
	})
}
