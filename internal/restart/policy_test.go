package restart_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/restart"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]core.RestartPolicy{
		"": {}, "no": {}, "always": {Name: core.RestartAlways}, "unless-stopped": {Name: core.RestartUnlessStopped},
		"on-failure": {Name: core.RestartOnFailure}, "on-failure:0": {Name: core.RestartOnFailure}, "on-failure:5": {Name: core.RestartOnFailure, Max: 5},
	} {
		got, err := restart.Parse(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		if again, err := restart.Parse(restart.Format(got)); err != nil || again != got {
			t.Errorf("%q as %q: %+v, %v", text, restart.Format(got), again, err)
		}
	}
	for _, text := range []string{"sometimes", "no:1", "always:3", "unless-stopped:", "on-failure:", "on-failure:-1", "on-failure:x", "on-failure:99999999999", "Always", " always"} {
		if _, err := restart.Parse(text); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// run lets a container's program run for a time and end with a code.
func run(c *core.Container, ran time.Duration, code int) {
	c.Main = core.Process{Started: start, Autopsy: &core.Autopsy{Exit: core.Exit{Code: code, At: start.Add(ran)}}}
	c.State = core.ContainerExited
	restart.Rules{}.Ended(c)
}

func TestTheDelayDoublesUpToAMinute(t *testing.T) {
	c := core.Container{Config: core.ContainerConfig{Restart: core.RestartPolicy{Name: core.RestartAlways}}}
	want := 100 * time.Millisecond
	for n := 1; n <= 15; n++ {
		run(&c, time.Second, 0)
		if c.Restarts.Delay != want || c.Restarts.Count != n || !c.Restarts.Due.Equal(start.Add(time.Second+want)) || !c.Restarting() {
			t.Fatalf("restart %d: %+v, want a delay of %v", n, c.Restarts, want)
		}
		want = min(2*want, time.Minute)
	}
	run(&c, 10*time.Second, 0)
	if c.Restarts.Delay != 100*time.Millisecond || c.Restarts.Count != 16 {
		t.Errorf("after a long run: %+v", c.Restarts)
	}
}

func TestEachPolicyAfterEachEnd(t *testing.T) {
	for _, c := range []struct {
		policy  string
		code    int
		signals []core.StopRequest
		count   int // restarts before
		now     bool
		boot    bool
	}{
		{"no", 1, nil, 0, false, false},
		{"always", 0, nil, 0, true, true},
		{"always", 1, nil, 100, true, true},
		{"always", 0, stop(), 0, false, true},
		{"always", 0, []core.StopRequest{{Signal: 1}}, 0, true, true}, // not its stop signal
		{"always", 0, []core.StopRequest{{Signal: 15}}, 0, false, true},
		{"always", 0, []core.StopRequest{{Signal: 9}}, 0, false, true},
		{"always", 137, []core.StopRequest{{Signal: 9, Stop: true, Call: core.UnhealthyCall}}, 0, true, true},
		{"always", 0, down(), 0, true, true},
		{"always", 0, append(stop(), down()...), 0, false, true},
		{"unless-stopped", 0, down(), 0, true, true},
		{"unless-stopped", 0, append(stop(), down()...), 0, false, false},
		{"on-failure", 0, down(), 0, true, true}, // as after a power cut
		{"on-failure:1", 0, down(), 0, true, true},
		{"no", 0, down(), 0, false, false},
		{"unless-stopped", 0, nil, 0, true, true},
		{"unless-stopped", 0, stop(), 0, false, false},
		{"unless-stopped", 0, []core.StopRequest{{Signal: 1}}, 0, false, false},
		{"unless-stopped", 0, []core.StopRequest{{Signal: 15, Stop: true, Call: core.UnhealthyCall}}, 0, false, false},
		{"on-failure", 0, nil, 0, false, false},
		{"on-failure", 1, nil, 1000, true, true},
		{"on-failure", 143, stop(), 0, false, true},
		{"on-failure", 143, []core.StopRequest{{Signal: 1}}, 0, true, true},
		{"on-failure:3", 1, nil, 2, true, false}, // its third restart is still pending at the boot, and was counted
		{"on-failure:3", 1, nil, 3, false, false},
		{"on-failure:4", 1, nil, 2, true, true},
	} {
		name := fmt.Sprintf("%+v", c)
		policy, err := restart.Parse(c.policy)
		if err != nil {
			t.Fatal(err)
		}
		ct := core.Container{Config: core.ContainerConfig{Restart: policy, Stop: core.Stop{Signal: "SIGTERM"}}, Restarts: core.Restarts{Count: c.count}}
		for _, r := range c.signals {
			restart.Rules{}.Requested(&ct, r)
		}
		run(&ct, time.Second, c.code)
		if ct.Restarting() != c.now {
			t.Errorf("%s: %+v", name, ct.Restarts)
		}
		restart.Rules{}.Booted(&ct, start.Add(time.Hour))
		if ct.Restarting() != c.boot || c.boot && (ct.Restarts.Count != 0 || !ct.Restarts.Boot || !ct.Restarts.Due.Equal(start.Add(time.Hour))) {
			t.Errorf("%s: after a boot %+v", name, ct.Restarts)
		}
		restart.Rules{}.Started(&ct)
		if ct.Restarts != (core.Restarts{Ran: true}) {
			t.Errorf("%s: after a start %+v", name, ct.Restarts)
		}
	}
}

func down() []core.StopRequest {
	return []core.StopRequest{{Signal: 15, Stop: true, Call: core.ShutdownCall}}
}

func stop() []core.StopRequest { return []core.StopRequest{{Signal: 15, Stop: true}} }

func TestAnySignalEndsTheRestartsOfAContainerWithoutAStopSignal(t *testing.T) {
	c := core.Container{Config: core.ContainerConfig{Restart: core.RestartPolicy{Name: core.RestartAlways}}}
	restart.Rules{}.Requested(&c, core.StopRequest{Signal: 1})
	if run(&c, time.Second, 0); c.Restarting() {
		t.Errorf("%+v", c.Restarts)
	}
}

func TestARequestInTheDelayCancelsTheRestart(t *testing.T) {
	c := core.Container{Config: core.ContainerConfig{Restart: core.RestartPolicy{Name: core.RestartAlways}}}
	run(&c, time.Second, 0)
	if restart.Rules.Requested(restart.Rules{}, &c, core.StopRequest{Stop: true}); c.Restarting() || c.Restarts.Count != 1 {
		t.Errorf("%+v", c.Restarts)
	}
}

func TestAProgramThatCannotBeStartedIsNotTriedAgain(t *testing.T) {
	c := core.Container{Config: core.ContainerConfig{Restart: core.RestartPolicy{Name: core.RestartAlways}}, State: core.ContainerExited}
	c.Main.Autopsy = &core.Autopsy{Exit: core.Exit{Code: 127}, Start: "no such file"}
	restart.Rules{}.Ended(&c)
	if c.Restarting() || c.Restarts.Error != "no such file" {
		t.Errorf("%+v", c.Restarts)
	}
	restart.Rules{}.Booted(&c, start)
	if c.Restarting() {
		t.Errorf("a program that never ran is started after a boot: %+v", c.Restarts)
	}
}

// TestAnAgentThatDiesInARestart: the program was started without a record, and has ended or was cut off by a boot.
func TestAnAgentThatDiesInARestart(t *testing.T) {
	due := func() core.Container {
		c := core.Container{Config: core.ContainerConfig{Restart: core.RestartPolicy{Name: core.RestartAlways}}, State: core.ContainerExited}
		c.Restarts = core.Restarts{Due: start, Count: 2, Delay: time.Second, Ran: true}
		c.Main.Autopsy = &core.Autopsy{Exit: core.Exit{Code: 1, At: start.Add(time.Second)}}
		return c
	}
	c := due()
	if (restart.Rules{}).Ended(&c); !c.Restarting() || c.Restarts.Count != 3 {
		t.Errorf("after its end: %+v", c.Restarts)
	}
	c = due()
	if (restart.Rules{}).Booted(&c, start); !c.Restarting() || !c.Restarts.Boot {
		t.Errorf("after a boot: %+v", c.Restarts)
	}
	c.Main = core.Process{Autopsy: &core.Autopsy{Start: "a broken pipe"}}
	if (restart.Rules{}).Ended(&c); c.Restarting() {
		t.Errorf("a failed start: %+v", c.Restarts)
	}
	if (restart.Rules{}).Booted(&c, start); !c.Restarting() {
		t.Errorf("a failed start of a program that ran before, after a boot: %+v", c.Restarts)
	}
}

func TestFailedStarts(t *testing.T) {
	refused := &core.StartError{Errno: 2, Err: errdefs.ErrNotFound}
	for _, c := range []struct {
		cause      error
		loop, boot bool // whether it is tried again
	}{
		{refused, false, false},
		{errdefs.ErrUnavailable, true, true},
		{errdefs.ErrNotFound, true, true},
		{errdefs.ErrAlreadyExists, false, true}, // a port that is in use
	} {
		for _, boot := range []bool{false, true} {
			ct := core.Container{State: core.ContainerExited, Restarts: core.Restarts{Due: start, Boot: boot, Delay: 40 * time.Second}}
			restart.Failed(&ct, c.cause, start)
			want := c.loop
			if boot {
				want = c.boot
			}
			if ct.Restarting() != want || ct.Restarts.Error != c.cause.Error() || want && !ct.Restarts.Due.Equal(start.Add(time.Minute)) {
				t.Errorf("%v, boot %v: %+v", c.cause, boot, ct.Restarts)
			}
		}
	}
}

func TestAgain(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		policy core.RestartName
		has    core.Restarts
		again  bool
	}{
		{core.RestartAlways, core.Restarts{}, true},
		{core.RestartAlways, core.Restarts{Stopped: true, Boot: true}, true},
		{core.RestartOnFailure, core.Restarts{Count: 3}, true},
		{core.RestartUnlessStopped, core.Restarts{Stopped: true}, false},
		{core.RestartAlways, core.Restarts{Cancelled: true}, false},
		{core.RestartNever, core.Restarts{}, false},
	} {
		ct := core.Container{Config: core.ContainerConfig{Restart: core.RestartPolicy{Name: c.policy}}, Restarts: c.has}
		ct.Restarts.Due = now.Add(-time.Second)
		restart.Again(&ct, errors.New("e"), now)
		if got := !ct.Restarts.Due.IsZero(); got != c.again || ct.Restarts.Error != "e" || got && !ct.Restarts.Due.After(now) {
			t.Errorf("%s %+v: %+v", c.policy, c.has, ct.Restarts)
		}
	}
}
