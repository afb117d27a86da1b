package nodetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
)

// KillKeeper kills the node's keeper. The nest starts another one.
func (n *Node) KillKeeper() {
	n.t.Helper()
	n.KeeperBack()
	for _, pid := range n.Processes("keeper") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// KeeperBack waits until the node has a keeper.
func (n *Node) KeeperBack() {
	n.t.Helper()
	roottest.Eventually(n.t, "the node has a keeper", func() bool { return len(n.Processes("keeper")) > 0 })
}

// Pause lets the node work for a while; nothing may depend on its length.
func Pause(ms int) {
	timer := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer timer.Stop()
	<-timer.C
}

// Incarnation names a process unlike any other that has its pid: by its start, too. It is ""
// when there is none.
func Incarnation(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The name, in parentheses, may have anything in it. The start is the 20th field after it.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if err != nil || len(f) < 20 || f[0] == "Z" {
		return ""
	}
	return strconv.Itoa(pid) + " of " + f[19]
}

// Starts is a directory where programs of containers record their starts. It is mounted at StartsAt
// there.
type Starts struct{ Dir string }

// StartsAt is where a container has it.
const StartsAt = "/starts"

// NewStarts makes one below the node's directory.
func (n *Node) NewStarts() Starts {
	n.t.Helper()
	s := Starts{Dir: filepath.Join(n.Dir, "starts")}
	if err := os.MkdirAll(s.Dir, 0o777); err != nil {
		n.t.Fatal(err)
	}
	return s
}

// Script is a shell's script that records its start, by the name in the variable TASK, and then
// continues with rest.
func (Starts) Script(rest string) string { return "echo $$ >>" + StartsAt + "/$TASK; " + rest }

// Of counts the starts of each name.
func (s Starts) Of(t *testing.T) map[string]int {
	t.Helper()
	list, err := os.ReadDir(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range list {
		data, err := os.ReadFile(filepath.Join(s.Dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		count[e.Name()] = bytes.Count(data, []byte("\n"))
	}
	return count
}

// Running are the containers that run, by their keys: each with its id and its process.
func (n *Node) Running() map[string]string {
	n.t.Helper()
	out, err := n.CLI("ps", "--json")
	var list []struct {
		ID, Key, State string
		Pid            int
	}
	if err == nil {
		err = json.Unmarshal([]byte(out), &list)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	all := map[string]string{}
	for _, c := range list {
		if c.State == "running" {
			all[c.Key] = c.ID + ", process " + Incarnation(c.Pid)
		}
	}
	return all
}
