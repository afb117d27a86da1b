package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestCopy: files go to and from running, ended and unstarted containers, with volumes and binds,
// and not by links out of the root.
func TestCopy(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		v := startVolumes(t)
		dir := t.TempDir()
		here := func(name string) string { return filepath.Join(dir, name) }
		for name, content := range map[string]string{"f": "of the host", "site/index.html": "page", "site/sub/x": "x", "bound/theirs": "bound", "secret": "secret"} {
			if err := os.MkdirAll(filepath.Dir(here(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(here(name), []byte(content), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chown(here("f"), 1000, 1000); err != nil {
			t.Fatal(err)
		}
		const links = "mkdir -p /box /www; echo made > /box/made; ln -s " + "/proc/1/root" + " /box/magic; ln -s ../../../../../.." + "/etc /box/up; ln -s /www /box/www; "
		mounts := []string{"-v", "vol:/data", "-v", here("bound") + ":/bound:ro"}
		run := func(name, end string, first ...string) {
			t.Helper()
			v.must(t, append(append(append(first, "--name", name), mounts...), v.image, "/bin/sh", "-c", links+"echo "+name+" > /data/"+name+"; "+end)...)
		}
		run("runs", "exec sleep 1000", "run", "-d")
		run("ended", "true", "run")
		v.must(t, "create", "--name", "made", "-v", "vol:/data", v.image, "/bin/sleep", "1000")
		read := func(name string) string {
			b, err := os.ReadFile(here(name))
			if err != nil {
				t.Error(err)
			}
			return strings.TrimSpace(string(b))
		}
		for _, c := range []string{"runs", "ended", "made"} {
			// In, by docker's rules, and out again.
			v.must(t, "cp", here("f"), c+":/tmp-file")
			v.must(t, "cp", here("site"), c+":/srv")
			v.must(t, "cp", here("site")+"/.", c+":/data/site-of-"+c)
			for from, want := range map[string]string{
				"/tmp-file": "of the host", "/srv/index.html": "page", "/srv/sub/x": "x", "/data/runs": "runs", "/data/site-of-" + c + "/index.html": "page",
			} {
				v.must(t, "cp", c+":"+from, here("back"))
				if got := read("back"); got != want {
					t.Errorf("%s of %s: %q", from, c, got)
				}
			}
			v.must(t, "cp", c+":/srv", here("srv-of-"+c))
			if got := read("srv-of-" + c + "/sub/x"); got != "x" {
				t.Errorf("the directory of %s: %q", c, got)
			}
			if c == "made" {
				continue
			}
			v.must(t, "cp", here("f"), c+":/box/www")
			v.must(t, "cp", c+":/www/f", here("back"))
			v.must(t, "cp", c+":/bound/theirs", here("back"))
			if got := read("back"); got != "bound" {
				t.Errorf("the bind of %s: %q", c, got)
			}
			// Links do not lead out, and read-only files stay as they are.
			for _, wrong := range [][]string{
				{c + ":/box/magic" + here("secret"), here("stolen")},
				{c + ":/box/up/../" + here("secret"), here("stolen")},
				{here("f"), c + ":/box/magic" + here("planted")},
				{here("f"), c + ":/box/up/.." + here("planted")},
				{here("f"), c + ":/bound/planted"},
				{here("site"), c + ":/box/made"},
				{c + ":/none", here("stolen")},
			} {
				if out, err := v.CLI("cp", wrong[0], wrong[1]); err == nil {
					t.Errorf("%v: %s", wrong, out)
				}
			}
			// As a tar, by pipes, with owners or without.
			sh := func(script string) string {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(script, "LONGSHORE", filepath.Join(nodetest.Bin(t), "longshore")+" --socket "+v.State+"/control.sock"))
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%s: %v: %s", script, err, out)
				}
				return string(out)
			}
			if got := sh("LONGSHORE cp " + c + ":/srv - | tar -t | sort"); got != "srv/\nsrv/index.html\nsrv/sub/\nsrv/sub/x\n" {
				t.Errorf("the tar: %q", got)
			}
			sh("tar -C " + dir + " -c f site | LONGSHORE cp - " + c + ":/www")
			v.must(t, "cp", "-a", here("f"), c+":/kept")
			if got := sh("LONGSHORE cp " + c + ":/www/f - | tar -tv --numeric-owner | cut -d ' ' -f 1,2; LONGSHORE cp " + c + ":/kept - | tar -tv --numeric-owner | cut -d ' ' -f 2; LONGSHORE cp " + c + ":/tmp-file - | tar -tv --numeric-owner | cut -d ' ' -f 2"); got != "-rw-r----- 1000/1000\n1000/1000\n0/0\n" {
				t.Errorf("owners: %q", got)
			}
		}
		for _, name := range []string{"stolen", "planted", "bound/planted"} {
			if _, err := os.Lstat(here(name)); err == nil {
				t.Errorf("%s is there", name)
			}
		}
		if got, err := v.CLI("exec", "runs", "/bin/sh", "-c", "cat /tmp-file /data/site-of-ended/index.html /data/site-of-made/sub/x"); err != nil || got != "of the hostpagex" {
			t.Errorf("the running one has %q, %v", got, err)
		}
		clean(t, v.Node)
		v.must(t, "rm", "-f", "runs", "ended", "made")
		v.must(t, "volume", "rm", "vol")
		clean(t, v.Node)
	})
}
