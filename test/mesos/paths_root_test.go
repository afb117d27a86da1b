package mesos

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/beneath/beneathtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/test/nodetest"
)

// exchange is a path in a parent's sandbox that is a directory one moment and a
// link the next, while something is nested in the parent.
type exchange struct {
	name, dir  string // below the parent's sandbox
	container  object // of the nested one, besides the image
	script     string // ends well when it has read the node's
	prefix     string // of files written into the node's directory
	beforehand bool   // whether try makes dir
}

func exchanges() []exchange {
	volume := func(path string) object {
		return object{"volumes": []object{{"mode": "RW", "container_path": "/got", "source": object{"type": "SANDBOX_PATH", "sandbox_path": object{"type": "PARENT", "path": path}}}}}
	}
	return []exchange{
		{name: "parent's directory", dir: "vol", container: volume("vol"), script: "cat /got/token", beforehand: true},
		{name: "below the parent's directory", dir: "vol", container: volume("vol/made/deep"), script: "cat /got/../token", prefix: "made", beforehand: true},
		{name: "sandboxes of nested ones", dir: "containers", script: "false", prefix: "b"},
	}
}

type tried struct{ started, refused, reached int }

func (c *client) try(x exchange, image, victim string, rounds int, enough bool) (n tried) {
	c.t.Helper()
	sandbox := filepath.Join(c.n.Root, "mesos/containers/a")
	dir, link := filepath.Join(sandbox, x.dir), filepath.Join(sandbox, "link")
	if err := os.Mkdir(dir, 0o777); x.beforehand && err != nil && !errors.Is(err, fs.ErrExist) {
		c.t.Fatal(err)
	}
	if err := os.Symlink(victim, link); err != nil {
		c.t.Fatal(err)
	}
	container := withImage(image)
	for k, v := range x.container {
		container[k] = v
	}
	b := nested(id("a"), "b")
	stop := beneathtest.Exchange(c.t, dir, link)
	for i := 0; i < rounds && (!enough || n.reached == 0); i++ {
		code, said := c.call("LAUNCH_NESTED_CONTAINER", object{"container_id": b, "container": container, "command": shell(x.script + " && exit 77 || exit 0")})
		if code == 200 {
			n.started++
			if _, text := c.call("WAIT_NESTED_CONTAINER", about(b)); strings.Contains(text, `"exit_status":19712`) { // 77
				n.reached++
			}
		} else {
			n.refused++
			if code >= 500 && n.refused == 1 {
				c.t.Logf("%s: %d %s", x.name, code, said)
			}
		}
		// Its sandbox may be below the link just now.
		roottest.Eventually(c.t, "a nested container is removed", func() bool {
			code, _ := c.call("REMOVE_NESTED_CONTAINER", about(b))
			return code == 200
		})
		list, err := os.ReadDir(victim)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, e := range list {
			if x.prefix != "" && strings.HasPrefix(e.Name(), x.prefix) {
				n.reached++
				if err := os.RemoveAll(filepath.Join(victim, e.Name())); err != nil {
					c.t.Fatal(err)
				}
			}
		}
	}
	times := stop()
	c.t.Logf("%s: %+v, %d exchanges", x.name, n, times)
	if err := os.Remove(link); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// TestExchangesOfASandbox exchanges directories of a container's sandbox for links
// to a directory of the node's while others are nested in it.
func TestExchangesOfASandbox(t *testing.T) {
	attack := func(t *testing.T, o nodetest.Options, rounds int, enough bool) (results []tried) {
		t.Helper()
		o.Config = "[face.mesos]\nenabled = true\n"
		n := nodetest.Start(t, o)
		c, image := newClient(t, n), n.Busybox(t)
		victim := filepath.Join(n.Dir, "victim")
		if err := os.Mkdir(victim, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(victim, "token"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		c.is("LAUNCH_CONTAINER", object{"container_id": id("a"), "container": withImage(image), "command": shell("sleep 10000")}, 200, "")
		for _, x := range exchanges() {
			results = append(results, c.try(x, image, victim, rounds, enough))
		}
		c.is("KILL_CONTAINER", about(id("a")), 200, "")
		if code, _ := c.call("WAIT_CONTAINER", about(id("a"))); code != 200 {
			t.Errorf("wait: %d", code)
		}
		c.is("REMOVE_CONTAINER", about(id("a")), 200, "")
		n.Check()
		return results
	}
	roottest.Run(t, func(t *testing.T) {
		t.Run("weakened", func(t *testing.T) {
			o := nodetest.Options{Bin: nodetest.Weakened(t), Env: []string{weaken.Env + "=" + string(weaken.Beneath)}}
			for i, n := range attack(t, o, 200, true) {
				if n.reached == 0 {
					t.Errorf("%s: the attack shows nothing: %+v", exchanges()[i].name, n)
				}
			}
		})
		for _, runtime := range []string{"native", "crun"} {
			t.Run(runtime, func(t *testing.T) {
				for i, n := range attack(t, nodetest.Options{Runtime: runtime}, beneathtest.Rounds(t), false) {
					if n.reached > 0 {
						t.Errorf("%s: reached the node's directory: %+v", exchanges()[i].name, n)
					}
				}
			})
		}
	})
}
