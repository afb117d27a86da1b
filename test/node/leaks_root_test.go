package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestTwoHundredPodsLeaveNothing makes and removes 200 pods and compares what
// the kernel and the disk hold with what they held before.
func TestTwoHundredPodsLeaveNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		cycle := func(i int) {
			p := n.RunPod(t, n.PodConfig(fmt.Sprintf("leak-%d", i)))
			p.Run(t, nodetest.ContainerConfig("c", image, "/bin/sh", "-c", "echo hello; exec sleep 1000"))
			p.Remove(t)
		}
		cycles := func(from, each int) {
			var wg sync.WaitGroup
			for w := range 4 {
				wg.Go(func() {
					for i := range each {
						cycle(from + each*w + i)
					}
				})
			}
			wg.Wait()
		}
		cycles(0, 5) // bridge, tables, pollers: what stays is there from now on
		var before map[string][]string
		nodetest.Eventually(t, "the first pods' links and files are gone", func() bool {
			before = holdings(t, n)
			return !slices.ContainsFunc(before["links"], func(l string) bool { return strings.Contains(l, "@") }) &&
				!slices.ContainsFunc(before["files root"], func(f string) bool { return strings.Contains(f, "/trash/") && !strings.HasSuffix(f, "/trash/") })
		})
		cycles(100, 50)
		if t.Failed() {
			return
		}
		// Links vanish after their namespace, connections after their call:
		// wait for the same holdings, then show what is not the same.
		var diff string
		t.Cleanup(func() {
			if diff != "" {
				t.Logf("what is not as before (-before +after):\n%s", diff)
				out, err := n.CLI("check")
				t.Logf("check: %s %v", out, err)
			}
		})
		nodetest.Eventually(t, "what 200 pods used is given back", func() bool {
			after := holdings(t, n)
			for kind, had := range before {
				if strings.HasPrefix(kind, "descriptors") { // some may be gone, such as an idle worker's
					after[kind] = nodetest.More(after[kind], had)
				}
			}
			diff = cmp.Diff(without(before, "descriptors"), without(after, "descriptors")) + extra(after)
			return diff == ""
		})
		n.Check()
	})
}

var handles = regexp.MustCompile(`# handle \d+|counter packets \d+ bytes \d+|expires \S+`)

// holdings is everything that could leak, by kind, sorted.
func holdings(t *testing.T, n *nodetest.Node) map[string][]string {
	t.Helper()
	h := map[string][]string{}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		h["mounts"] = append(h["mounts"], strings.Fields(line)[4])
	}
	h["links"] = lines(t, "ip", "-o", "link", "show")
	for i, l := range h["links"] {
		h["links"][i] = strings.Fields(l)[1]
	}
	ruleset := lines(t, "nft", "list", "ruleset")
	for i := range ruleset {
		ruleset[i] = handles.ReplaceAllString(ruleset[i], "")
	}
	h["nft"] = ruleset
	for _, dir := range []string{n.State, n.Root} {
		h["files "+filepath.Base(dir)] = nodetest.Tree(t, dir)
	}
	cgroups, err := filepath.Glob("/sys/fs/cgroup/*" + n.Cgroup)
	if err != nil {
		t.Fatal(err)
	}
	unified, _ := filepath.Glob("/sys/fs/cgroup" + n.Cgroup)
	for _, c := range append(cgroups, unified...) {
		h["cgroups"] = append(h["cgroups"], nodetest.Tree(t, c)...)
	}
	h["cgroups"] = slices.DeleteFunc(h["cgroups"], func(p string) bool { return !strings.HasSuffix(p, "/") })
	h["descriptors agent"] = nodetest.Descriptors(t, n.Pid())
	for _, role := range []string{"keeper", "nest"} {
		for _, pid := range nodetest.Processes("longshore-keeper", role) {
			h["descriptors "+role] = nodetest.Descriptors(t, pid)
		}
	}
	for _, v := range h {
		slices.Sort(v)
	}
	return h
}

func lines(t *testing.T, name string, args ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
	var found []string
	for l := range strings.Lines(string(out)) {
		found = append(found, strings.TrimSpace(l))
	}
	return found
}

func without(h map[string][]string, prefix string) map[string][]string {
	rest := map[string][]string{}
	for k, v := range h {
		if !strings.HasPrefix(k, prefix) {
			rest[k] = v
		}
	}
	return rest
}

// extra tells of descriptors that were not there before.
func extra(after map[string][]string) string {
	s := ""
	for k, v := range after {
		if strings.HasPrefix(k, "descriptors") && len(v) > 0 {
			s += fmt.Sprintf("%s: +%v\n", k, v)
		}
	}
	return s
}
