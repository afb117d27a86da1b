package disk

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

type part struct {
	Name, Note   string
	Bytes, Frees number
	Parts        []*part
}

// number is one that JSON has as a text.
type number uint64

func (n *number) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseUint(strings.Trim(string(b), `"`), 10, 64)
	*n = number(v)
	return err
}

// find returns the part with a path of names; each is a part of a name.
func (p *part) find(path ...string) *part {
	if len(path) == 0 {
		return p
	}
	for _, c := range p.Parts {
		if strings.Contains(c.Name, path[0]) {
			if found := c.find(path[1:]...); found != nil {
				return found
			}
		}
	}
	return nil
}

func measured(t *testing.T, n *nodetest.Node) (all, deleted *part) {
	t.Helper()
	out, err := n.CLI("why", "disk", "--json")
	if err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	var doc struct{ Parts []*part }
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Parts) != 2 {
		t.Fatalf("%s: %v", out, err)
	}
	return doc.Parts[0], doc.Parts[1]
}

func du(t *testing.T, dir string) float64 {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "du", "-sx", "--block-size=1", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	v, err := strconv.ParseFloat(strings.Fields(string(out))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestTheDisk: the tree has the sum of du, each object has the bytes that it has written, deleted open files are listed, and a prune
// frees as many bytes as the tree has said.
func TestTheDisk(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		cli := func(args ...string) {
			t.Helper()
			if out, err := n.CLI(args...); err != nil {
				t.Fatalf("longshore %s: %s, %v", strings.Join(args, " "), out, err)
			}
		}
		const mib = 1 << 20
		fill := func(path string, n int) string {
			return fmt.Sprintf("head -c %d /dev/urandom > %s", n*mib, path)
		}
		cli("pull", image)
		cli("run", "--name", "ended", image, "sh", "-c", fill("/f", 5))
		cli("run", "-d", "--name", "runs", "-v", "data:/data", image, "sh", "-c",
			fill("/f", 3)+"; "+fill("/data/f", 4)+"; "+fill("/gone", 2)+"; exec 9</gone; rm /gone; head -c 1000000 /dev/urandom | base64; touch /ready; sleep 1000")
		t.Cleanup(func() {
			if t.Failed() {
				out, _ := n.CLI("logs", "--tail", "5", "runs")
				t.Logf("%.2000s", out)
			}
		})
		nodetest.Eventually(t, "its files", func() bool { _, err := n.CLI("exec", "runs", "/bin/cat", "/ready"); return err == nil })
		for i := range 20 {
			cli("run", "-d", "--name", fmt.Sprintf("c%d", i), image, "sleep", "1000")
		}
		cli("commit", "ended", "derived:1")

		all, deleted := measured(t, n)
		if want := du(t, n.Root); float64(all.Bytes) < 0.99*want || float64(all.Bytes) > 1.01*want {
			t.Errorf("the tree has %d bytes, du %.0f", all.Bytes, want)
		}
		for _, c := range []struct {
			path     []string
			from, to number
			frees    bool
			note     string
		}{
			{[]string{"containers", "ended (cli)", "changed files"}, 5 * mib, 6 * mib, true, ""},
			{[]string{"containers", "runs (cli)", "changed files"}, 3 * mib, 4 * mib, false, ""},
			{[]string{"containers", "runs (cli)", "output"}, 1 * mib, 3 * mib, false, ""},
			{[]string{"volumes", "data (cli)"}, 4 * mib, 5 * mib, false, "1 container uses it"},
			{[]string{"images", "derived:1 (cli)"}, 5 * mib, 12 * mib, true, "no container uses it"},
			{[]string{"images", "shared by several", "busybox"}, mib / 2, 20 * mib, false, ""},
		} {
			p := all.find(c.path...)
			switch {
			case p == nil:
				t.Errorf("no part %q", c.path)
			case p.Bytes < c.from || p.Bytes > c.to || (p.Frees == p.Bytes) != c.frees || c.note != "" && p.Note != c.note:
				t.Errorf("%q: %+v", c.path, p)
			}
		}
		if p := deleted.find("of runs (cli)"); p == nil || p.Bytes < 2*mib {
			t.Errorf("deleted files: %+v", p)
		}
		if t.Failed() {
			out, _ := n.CLI("why", "disk", "--least", "0")
			t.Log(out)
		}
		said := all.Frees
		cli("system", "prune", "--all", "--force")
		nodetest.Eventually(t, "the removed files are gone", func() bool {
			after, _ := measured(t, n)
			freed := int64(all.Bytes) - int64(after.Bytes)
			return freed > int64(said)*9/10 && freed < int64(said)*11/10+mib
		})
		n.Check()
	})
}

// TestADiskLimitIsMeasured: on a file system without project quotas a container with more than its limit is killed.
func TestADiskLimitIsMeasured(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		for name, size := range map[string]int{"below": 2, "above": 12} {
			write := fmt.Sprintf("dd if=/dev/zero of=/f bs=1M count=%d; sleep 1000", size)
			if out, err := n.CLI("run", "-d", "--name", name, "--disk", "8m", image, "sh", "-c", write); err != nil {
				t.Fatalf("%s, %v", out, err)
			}
		}
		if out, err := n.CLI("wait", "above"); err != nil {
			t.Fatalf("%s, %v", out, err)
		}
		if out, err := n.CLI("why", "above"); err != nil || !strings.Contains(out, "disk limit") {
			t.Errorf("why: %s, %v", out, err)
		}
		if out, err := n.CLI("exec", "below", "true"); err != nil {
			t.Errorf("the one below its limit: %s, %v", out, err)
		}
		n.Check()
	})
}
