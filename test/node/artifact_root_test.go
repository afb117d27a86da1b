package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// artifactRig is a node with two artifacts that the command line uses.
type artifactRig struct {
	t                *testing.T
	n                *nodetest.Node
	image, one, many string
}

// cli runs a command that succeeds.
func (r artifactRig) cli(args ...string) string {
	r.t.Helper()
	out, err := r.n.CLI(args...)
	if err != nil {
		r.t.Errorf("%v", err)
	}
	return strings.TrimSpace(out)
}

// shows runs a container with a mount.
func (r artifactRig) shows(mount, script, want string) {
	r.t.Helper()
	if got := r.cli("run", "--rm", "--mount", mount, r.image, "/bin/sh", "-c", script); got != want {
		r.t.Errorf("--mount %s: %q, want %q", mount, got, want)
	}
}

// refused checks the error of a command.
func (r artifactRig) refused(want string, args ...string) {
	r.t.Helper()
	if out, err := r.n.CLI(args...); err == nil || !strings.Contains(err.Error(), want) {
		r.t.Errorf("%q: %q, %v; want %q", args, out, err, want)
	}
}

// TestArtifactsOfTheCommandLine pulls, lists, inspects, mounts, saves, loads and removes artifacts.
func TestArtifactsOfTheCommandLine(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Skip(err)
		}
		reg := imagetest.NewRegistry(t)
		one := imagetest.Artifact{Type: "application/vnd.example.one", Files: []imagetest.ArtifactFile{{Title: "one.txt", Body: []byte("one\n")}}}.Build()
		many := imagetest.Artifact{Type: "application/vnd.example.many", Files: []imagetest.ArtifactFile{
			{Title: "a.txt", Body: []byte("a\n")}, {Path: "dir/b.txt", Body: []byte("b\n")}, {Body: []byte("nameless\n")},
		}}.Build()
		r := artifactRig{t: t, n: n, image: reg.Push("library/busybox", "latest", built), one: reg.Push("team/one", "v1", one), many: reg.Push("team/many", "v1", many)}
		r.cli("pull", "-q", r.image)
		if id := r.cli("pull", "-q", r.one); id != one.Manifest.Digest.String() {
			t.Errorf("pull printed %s", id)
		}
		if got := r.cli("images", "--filter", "type=artifact", "--format", "{{.Repository}} {{.Artifact}}"); got != reg.Host+"/team/one application/vnd.example.one" {
			t.Errorf("%q", got)
		}
		if got := r.cli("images", "--filter", "type=image", "--format", "{{.Name}}"); got != r.image {
			t.Errorf("%q", got)
		}
		if got := r.cli("images"); !strings.Contains(got, "artifact") {
			t.Errorf("%q", got)
		}
		r.shows("type=artifact,src="+r.one+",dst=/new", "cat /new", "one")
		r.shows("type=artifact,src="+r.one+",dst=/etc/passwd", "cat /etc/passwd", "one")
		r.shows("type=artifact,src="+r.one+",dst=/etc", "cat /etc/one.txt; ls /etc/passwd", "one\n/etc/passwd")
		r.shows("type=artifact,src="+r.one+",dst=/etc,name=x", "cat /etc/x; touch /etc/x 2>&1; true", "one\ntouch: /etc/x: Read-only file system")
		// An artifact that is not there is pulled, as the image is.
		r.shows("type=artifact,src="+r.many+",dst=/m", "cat /m/a.txt /m/dir/b.txt; cat /m/sha256-*", "a\nb\nnameless")
		r.shows("type=artifact,src="+r.many+",dst=/m,title=dir/b.txt", "cat /m", "b")
		r.shows("type=artifact,src="+r.many+",dst=/etc", "cat /etc/dir/b.txt; ls /etc/passwd", "b\n/etc/passwd")
		r.shows("type=artifact,src="+r.many+",dst=/m,name=f", "cat /m/f-0 /m/f-1", "a\nb")
		r.shows("type=image,src="+r.many+",dst=/m,subpath=dir", "cat /m/b.txt", "b")
		r.shows("type=image,src="+r.image+",dst=/m", "test -x /m/bin/sh && echo there", "there")
		r.refused("it is a file", "run", "--rm", "--mount", "type=artifact,src="+r.many+",dst=/etc/passwd", r.image)
		r.refused("it is an artifact (application/vnd.example.one)", "run", "--rm", r.one)
		r.refused("use the type image", "run", "--rm", "--mount", "type=artifact,src="+r.image+",dst=/m", r.image)
		r.refused("not found", "run", "--rm", "--pull", "never", "--mount", "type=artifact,src="+reg.Host+"/team/none,dst=/m", r.image)
		if left := r.cli("ps", "-aq"); left != "" {
			t.Errorf("containers are left: %s", left)
		}

		// A container keeps its artifact over a restart and a boot of the node, and inspect shows both.
		r.cli("create", "--name", "kept", "--mount", "type=artifact,src="+r.one+",dst=/new", r.image, "cat", "/new")
		if got := r.cli("system", "df", "--format", "{{.Type}} {{.Active}}"); !strings.HasPrefix(got, "Images 2\n") {
			t.Errorf("%q", got)
		}
		r.refused("container kept uses it", "rmi", r.one)
		r.cli("rmi", "-f", r.one)
		for i := range 3 {
			if got := r.cli("start", "-a", "kept"); got != "one" {
				t.Errorf("start %d: %q", i, got)
			}
			if i == 1 {
				n.PowerCut()
				n.Up()
			}
		}
		if got := r.cli("inspect", "--format", "{{range .Mounts}}{{.Type}} {{.Name}} {{.Destination}} {{.RW}}{{end}} {{range .HostConfig.Mounts}}{{.Type}}{{end}}", "kept"); got != "image "+r.one+" /new false artifact" {
			t.Errorf("%q", got)
		}
		r.cli("rm", "kept")

		archive := filepath.Join(t.TempDir(), "many.tar")
		r.cli("export", "-o", archive, r.many)
		r.cli("rmi", r.many)
		r.cli("load", "-i", archive)
		var doc []struct {
			Record struct {
				Artifact string
				Files    []struct{ Name string }
			}
		}
		if err := json.Unmarshal([]byte(r.cli("inspect", r.many)), &doc); err != nil || len(doc) != 1 || doc[0].Record.Artifact != "application/vnd.example.many" || len(doc[0].Record.Files) != 3 {
			t.Errorf("%+v, %v", doc, err)
		}
		r.cli("rmi", r.many)

		// An artifact that is made here goes to a registry and comes back.
		dir := t.TempDir()
		for name, body := range map[string]string{"x.txt": "x\n", "y.json": "{}\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		made := reg.Host + "/team/made:v1"
		id := r.cli("artifact", "add", "--type", "application/vnd.example.made", made, filepath.Join(dir, "x.txt"), filepath.Join(dir, "y.json"))
		r.refused("use --replace", "artifact", "add", made, filepath.Join(dir, "x.txt"))
		r.cli("artifact", "push", made)
		r.cli("artifact", "rm", made)
		if got := r.cli("artifact", "pull", "-q", made); got != id {
			t.Errorf("pulled %s, made %s", got, id)
		}
		if got := r.cli("artifact", "ls", "--format", "{{.Name}} {{.Artifact}}"); got != made+" application/vnd.example.made" {
			t.Errorf("%q", got)
		}
		r.shows("type=artifact,src="+made+",dst=/m", "cat /m/x.txt /m/y.json", "x\n{}")
		r.cli("artifact", "extract", "--title", "x.txt", made, filepath.Join(dir, "out"))
		if got, err := os.ReadFile(filepath.Join(dir, "out")); err != nil || string(got) != "x\n" {
			t.Errorf("%q, %v", got, err)
		}
		r.refused("is an image and no artifact", "artifact", "extract", r.image, dir)
		r.cli("prune", "-a")
		if left := r.cli("images", "-q"); left != "" {
			t.Errorf("images are left: %s", left)
		}
		clean(t, n)
	})
}
