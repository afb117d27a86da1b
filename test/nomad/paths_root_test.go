package nomad

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/beneath/beneathtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/test/nodetest"
)

// without is a node with agent and keeper built without defences.
func without(t *testing.T, o nodetest.Options, defences ...weaken.Defence) nodetest.Options {
	t.Helper()
	names := make([]string, len(defences))
	for i, d := range defences {
		names[i] = string(d)
	}
	o.Bin, o.Env = nodetest.Weakened(t), append(o.Env, weaken.Env+"="+strings.Join(names, ","))
	return o
}

// victim is a directory of the node's that no task has.
func victim(t *testing.T, r *rig) string {
	t.Helper()
	dir := filepath.Join(r.Dir, "victim")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("the node's own\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestATaskLeadsNowhere is the attack of a job that binds its allocation's
// directory: it puts a link to the node's root in the place of its own directory,
// and is started again. Where it cannot bind that, the test does the same to its
// directory and to that of logs.
func TestATaskLeadsNowhere(t *testing.T) {
	attack := func(t *testing.T, o nodetest.Options) (bound bool, said string, leaked []string) {
		t.Helper()
		r := newRigOn(t, o, nil)
		dir := victim(t, r)
		first := r.given("first", "cd /up && mv web/local web/was && ln -s / web/local", map[string]any{"volumes": []string{"..:/up"}})
		_, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: first})
		if bound = err == nil; bound {
			r.wait(first.GetId())
			r.destroy(first)
		} else {
			if !strings.Contains(err.Error(), "the allocation's directory") || !strings.Contains(err.Error(), "../alloc/data") {
				t.Errorf("it says %v", err)
			}
			// As if another way had been found.
			alloc := filepath.Join(r.dir, allocID)
			for _, err := range []error{
				os.Rename(alloc+"/web/local", alloc+"/web/was"), os.Symlink("/", alloc+"/web/local"),
				os.Rename(alloc+"/alloc/logs", alloc+"/alloc/was"), os.Symlink(dir, alloc+"/alloc/logs"),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		next := r.task("bbbbbbbb", "cat /local"+dir+"/token; cp /local"+dir+"/token /alloc/data/stolen")
		if _, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: next}); err == nil {
			r.wait(next.GetId())
			r.destroy(next)
		} else if !strings.Contains(err.Error(), "symbolic link") {
			t.Errorf("it says %v", err)
		}
		stolen, err := os.ReadFile(filepath.Join(r.dir, allocID, "alloc/data/stolen"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.Name() != "token" {
				leaked = append(leaked, e.Name())
			}
		}
		r.nothingLeft()
		return bound, string(stolen), leaked
	}
	roottest.Run(t, func(t *testing.T) {
		t.Run("weakened", func(t *testing.T) {
			bound, said, _ := attack(t, without(t, nodetest.Options{}, weaken.Beneath, weaken.NomadBinds))
			if !bound || said != "the node's own\n" {
				t.Errorf("the attack shows nothing: bound %t, read %q", bound, said)
			}
		})
		for _, runtime := range []string{"native", "crun"} {
			t.Run(runtime, func(t *testing.T) {
				bound, said, leaked := attack(t, nodetest.Options{Runtime: runtime})
				if bound || said != "" || len(leaked) > 0 {
					t.Errorf("bound %t, read %q, written %v", bound, said, leaked)
				}
			})
		}
	})
}

// TestWhatAJobMayBind: its own directories and the shared data, files in them, and
// nothing that other mounts are made of.
func TestWhatAJobMayBind(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		for _, runtime := range []string{"native", "crun", "runc"} {
			t.Run(runtime, func(t *testing.T) {
				r := newRigOn(t, nodetest.Options{Runtime: runtime}, nil)
				r.write("binds/local/conf.txt", "a file\n")
				r.write("alloc/data/shared", "shared\n")
				r.answers([]asks{{
					name: "binds", config: map[string]any{"volumes": []string{"local/conf.txt:/etc/conf:ro", "local:/again", "../alloc/data:/data", "../alloc/logs:/seen:ro", "secrets:/hidden"}},
					script: "cat /etc/conf /again/conf.txt /data/shared; echo new > /data/new; touch /again/made /hidden/made && ls /local/made /secrets/made; touch /etc/conf /seen/x 2>/dev/null || echo read-only; ls /seen",
					want:   []string{"a file\na file\nshared\n/local/made\n/secrets/made\nread-only\n", "binds.stdout.0"},
				}})
				for _, config := range []map[string]any{
					{"volumes": []string{"..:/up"}},
					{"volumes": []string{"../:/up:ro"}},
					{"volumes": []string{".:/up"}},
					{"volumes": []string{"local/..:/up"}},
					{"volumes": []string{"../alloc:/up"}},
					{"volumes": []string{"../binds:/up"}},
					{"volumes": []string{"../alloc/logs:/up"}},
					{"volumes": []string{filepath.Join(r.dir, allocID) + ":/up"}},
					{"volumes": []string{filepath.Join(r.dir, allocID) + "/web:/up"}},
					{"mount": []any{map[string]any{"type": "bind", "source": "..", "target": "/up"}}},
					{"image": nil, "rootfs": ".."},
					{"image": nil, "rootfs": "../alloc"},
				} {
					_, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: r.given("refused", "true", config)})
					if err == nil || !strings.Contains(err.Error(), "bind") {
						t.Errorf("%v: %v", config, err)
					}
				}
				r.nothingLeft()
			})
		}
	})
}

// exchange is one path of a task's that is a directory one moment and a link the
// next.
type exchange struct {
	name, dir, link string // below the allocation's directory
	config          map[string]any
	script          string
}

func exchanges() []exchange {
	return []exchange{
		{name: "local", dir: "race/local", link: "race/link", script: "cat /local/token"},
		{name: "mount", dir: "alloc/data/dir", link: "alloc/data/link", config: map[string]any{"volumes": []string{"../alloc/data/dir:/dir"}}, script: "cat /dir/token"},
		{name: "logs", dir: "alloc/logs", link: "alloc/link", script: "true"},
		{name: "rootfs", dir: "race/local/root", link: "race/local/link", config: map[string]any{"image": nil, "rootfs": "local/root"}, script: "cat /token"},
	}
}

// tried counts an attack's rounds.
type tried struct{ started, refused, reached int }

// try starts a task again and again while a path of it is exchanged for a link, and counts its
// reads of and writes to the node's files.
func (r *rig) try(x exchange, victim string, rounds int, enough bool) (n tried) {
	r.t.Helper()
	r.mkdir(x.dir, "alloc/data", "alloc/logs", "race/local", "race/secrets")
	alloc := filepath.Join(r.dir, allocID)
	if x.name == "rootfs" {
		for _, root := range []string{filepath.Join(alloc, x.dir), victim} { // with a shell in it
			if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
				r.t.Fatal(err)
			}
			b, err := os.ReadFile("/bin/busybox")
			if err != nil {
				r.t.Fatal(err)
			}
			for _, name := range []string{"sh", "cat"} {
				if err := os.WriteFile(filepath.Join(root, "bin", name), b, 0o755); err != nil {
					r.t.Fatal(err)
				}
			}
		}
	}
	if err := os.Symlink(victim, filepath.Join(alloc, x.link)); err != nil {
		r.t.Fatal(err)
	}
	stop := beneathtest.Exchange(r.t, filepath.Join(alloc, x.dir), filepath.Join(alloc, x.link))
	for i := 0; i < rounds && (!enough || n.reached == 0); i++ {
		task := r.given("race", x.script+" && exit 77 || exit 0", x.config)
		if _, err := r.Driver.StartTask(r.t.Context(), &nomaddriver.StartTaskRequest{Task: task}); err != nil {
			n.refused++
		} else {
			n.started++
			if code := r.wait(task.GetId()).GetResult().GetExitCode(); code == 77 && x.name != "logs" {
				n.reached++
			}
			r.destroy(task)
		}
		list, err := os.ReadDir(victim)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, e := range list {
			if strings.HasPrefix(e.Name(), "race.") || e.Name() == "local" || e.Name() == "proc" {
				n.reached++
				if err := os.RemoveAll(filepath.Join(victim, e.Name())); err != nil {
					r.t.Fatal(err)
				}
			}
		}
	}
	times := stop()
	r.t.Logf("%s: %+v in %d rounds, %d exchanges", x.name, n, rounds, times)
	if err := os.Remove(filepath.Join(alloc, x.link)); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// TestExchangesOfATasksPaths exchanges each path that a task is mounted from, and
// its directory of logs, for a link to a directory of the node's, while it starts.
func TestExchangesOfATasksPaths(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		t.Run("weakened", func(t *testing.T) {
			r := newRigOn(t, without(t, nodetest.Options{}, weaken.Beneath), nil)
			dir := victim(t, r)
			for _, x := range exchanges() {
				if n := r.try(x, dir, 200, true); n.reached == 0 {
					t.Errorf("%s: the attack shows nothing: %+v", x.name, n)
				}
			}
		})
		for _, runtime := range []string{"native", "crun"} {
			t.Run(runtime, func(t *testing.T) {
				r := newRigOn(t, nodetest.Options{Runtime: runtime}, nil)
				dir := victim(t, r)
				for _, x := range exchanges() {
					n := r.try(x, dir, beneathtest.Rounds(t), false)
					if n.reached > 0 {
						t.Errorf("%s: reached the node's directory: %+v", x.name, n)
					}
				}
				r.nothingLeft()
			})
		}
	})
}
