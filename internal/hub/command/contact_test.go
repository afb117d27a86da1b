package command_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/hubtest"
	"github.com/longshore/longshore/internal/hub/store/etcd"
	"github.com/longshore/longshore/internal/hub/store/etcd/etcdtest"
	"github.com/longshore/longshore/internal/roottest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// TestReadsWithoutEtcdSayHowOldTheyAre: every command that lists something succeeds while etcd is gone, and
// prints its answer's time on standard error. Neither before nor after that does it print such a line.
func TestReadsWithoutEtcdSayHowOldTheyAre(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.NewEtcd(t, 1)
	h := hubtest.New(t, func(o *hub.Options) { o.Store.Open = etcd.Options{Remote: &cluster.Remote}.Open })
	n := h.Join()
	hubtest.MustOpen(t, n, "")
	const notice = "etcd cannot be reached"
	reads := [][]string{{"nodes"}, {"nodes", "inspect", n.NodeID}, {"services", "--json"}, {"tasks"}, {"secrets", "ls"}, {"configs", "ls"}, {"operator", "ls"}, {"ca"}, {"token"}}
	read := func(args []string) (told string) {
		t.Helper()
		out, told, code := run(t, "", append([]string{"--socket", h.Socket}, args...)...)
		if code != 0 {
			t.Errorf("%s: %d %s", args, code, told)
		}
		if strings.Contains(out, notice) || args[len(args)-1] == "--json" && !json.Valid([]byte(out)) {
			t.Errorf("%s: standard output: %q", args, out)
		}
		return told
	}
	all := func(want bool) {
		t.Helper()
		for _, args := range reads {
			if told := read(args); strings.Contains(told, notice) != want || want && !strings.HasPrefix(told, "longshore-hub: as of 2") {
				t.Errorf("%s: %q, with the notice: %v", args, told, want)
			}
		}
	}
	all(false)
	cluster.Kill(0)
	roottest.Eventually(t, "the hub notices that etcd is gone", func() bool { return strings.Contains(read(reads[0]), notice) })
	all(true)
	cluster.Start(0)
	roottest.Eventually(t, "the hub notices that etcd is back", func() bool { return !strings.Contains(read(reads[0]), notice) })
	all(false)
}
