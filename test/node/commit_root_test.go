package node

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// TestCommit makes an image of a container that has added, changed, replaced and deleted files, and runs
// it: it has the same tree. A second one is made of that.
func TestCommit(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		v := startVolumes(t)
		const look = `cd /made && find . | sort | while read f; do stat -c '%n %A %u:%g %s %t:%T %h' "$f"; done; cat opaque/* linked text; readlink away`
		v.must(t, "run", "--name", "first", "-e", "KEPT=yes", "-v", "vol:/vol", v.image, "/bin/sh", "-c", `mkdir -p /made/opaque /made/gone && cd /made
			echo old > opaque/old; echo old > gone/old; echo old > text; echo in > /vol/in; mkdir /made/dir; chown 7:8 dir`)
		if got := v.must(t, "diff", "first"); !strings.Contains(got, "A /made\n") || !strings.Contains(got, "A /made/gone/old\n") || strings.Contains(got, "vol/in") || strings.Contains(got, "/etc/hosts") {
			t.Errorf("diff: %s", got)
		}
		id := v.must(t, "commit", "-m", "one", "-a", "me", "-c", "ENV MORE=\"a b\"", "-c", "WORKDIR /made", "first", "made:1")
		if !strings.HasPrefix(id, "sha256:") {
			t.Errorf("commit: %q", id)
		}
		if got := v.must(t, "run", "--rm", "made:1", "/bin/sh", "-c", "echo $KEPT-$MORE-$PWD; cat text; ls -d /vol/* 2>/dev/null; true"); strings.TrimSpace(got) != "yes-a b-/made\nold" {
			t.Errorf("the image has %q", got)
		}
		v.must(t, "run", "-d", "--name", "second", "--init", "made:1", "/bin/sh", "-c", `rm -r opaque gone && mkdir opaque && echo new > opaque/new && ln text linked && ln -s ../../../etc/passwd away &&
			echo more >> text && chmod 4711 text && mkfifo fifo && mknod null c 1 3 && echo x > "new
line" && touch ready && exec sleep 1000`)
		roottest.Eventually(t, "it is ready", func() bool { _, err := v.CLI("exec", "second", "/bin/cat", "/made/ready"); return err == nil })
		diff := v.must(t, "diff", "second")
		for _, want := range []string{"C /made\n", "C /made/opaque\n", "D /made/opaque/old\n", "A /made/opaque/new\n", "D /made/gone\n", "C /made/text\n", "A /made/linked\n", "A /made/new line\n"} {
			if !strings.Contains(diff+"\n", want) {
				t.Errorf("diff lacks %q: %s", want, diff)
			}
		}
		want := v.must(t, "exec", "second", "/bin/sh", "-c", look)
		v.must(t, "commit", "second", "made:2")
		if got := v.must(t, "ps", "--format", "{{.State}}", "--filter", "name=second"); strings.TrimSpace(got) != "running" {
			t.Errorf("after the commit it is %s", got)
		}
		got := v.must(t, "run", "--rm", "made:2", "/bin/sh", "-c", look)
		if got != want {
			t.Errorf("the image has another tree:\n%s\nand not\n%s", got, want)
		}
		if h := v.must(t, "history", "--format", "{{.Comment}}", "made:2"); !strings.Contains(h, "one") {
			t.Errorf("history: %s", h)
		}
		v.must(t, "rm", "-f", "first", "second")
		v.must(t, "rmi", "made:1")
		out := filepath.Join(t.TempDir(), "made.tar")
		v.must(t, "save", "-o", out, "made:2")
		v.must(t, "rmi", "made:2")
		v.must(t, "load", "-i", out)
		if again := v.must(t, "run", "--rm", "made:2", "/bin/sh", "-c", look); again != want {
			t.Errorf("what was saved and loaded has another tree:\n%s", again)
		}
		for _, wrong := range [][]string{{"commit", "-c", "FROM x", "x"}, {"commit", "-c", "EXPOSE x", "x"}, {"commit", "x", "Bad Name"}, {"commit", "nobody"}, {"commit", "x", "made@sha256:" + strings.Repeat("0", 64)}} {
			if wrong[1] != "nobody" {
				_, _ = v.CLI("create", "--name", "x", v.image, "/bin/true")
			}
			if out, err := v.CLI(wrong...); err == nil {
				t.Errorf("%q: %s", wrong, out)
			}
		}
		many := "VOLUME"
		for i := range 129 {
			many += " /v" + strconv.Itoa(i)
		}
		if _, err := v.CLI("commit", "-c", many, "x", "many"); err == nil || !strings.Contains(err.Error(), "it declares 129 volumes, at most 128") {
			t.Errorf("a commit with 129 volumes: %v", err)
		}
		v.must(t, "rm", "x")
		if left, err := os.ReadDir(filepath.Join(v.Dir, "root/image/content/ingest")); err == nil && len(left) > 0 {
			t.Errorf("left in the store: %v", left)
		}
		v.must(t, "check", "--images")
		v.Check()
	})
}
