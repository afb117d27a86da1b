package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/doctor"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/image/trust"
)

// The forms of a finding.

func ok(name, format string, args ...any) control.Finding {
	return doctor.OK(name, format, args...)
}

func warn(name, hint, format string, args ...any) control.Finding {
	return doctor.Warn(name, hint, format, args...)
}

func fail(name, hint, format string, args ...any) control.Finding {
	return doctor.Fail(name, hint, format, args...)
}

// doctor reports the findings about this node, with advice. With try it also starts a container.
func (n *node) doctor(ctx context.Context, try bool) []control.Finding {
	n.mend(true, true)
	findings := []control.Finding{doctor.Kernel(), n.cgroupFinding(), doctor.Capabilities(), doctor.State(n.cfg.Agent.State), doctor.Devices(), confinementFinding(ctx, n.labelled())}
	findings = append(findings, doctor.Space(n.cfg.Agent.Root, n.cfg.Agent.State)...)
	findings = append(findings, n.runtimeFindings()...)
	findings = append(findings, n.keeperFinding(ctx), programsFinding(n.processes(ctx), n.next.failure()), n.redundancy(ctx), n.networkFinding(ctx), n.imageFinding(), boardFinding(ctx, n), modulesFinding(n.modules), doctor.KernelLog(), n.checkpointFinding(ctx), connectionFinding(n.limits.Usage(), time.Now()), capacityFinding(n, keeperPid(ctx, n)), inotifyFinding(), n.usersFinding(ctx), sleepFinding(n), logsFinding(n))
	if n.swarm != nil {
		st := n.swarm.Status()
		findings = append(findings, swarmFinding(st), overlayFinding(ctx, n.network.Overlays, st.Overlays), gossipFinding(st), publishedFinding(st.Overlays))
	}
	if try {
		findings = append(findings, n.trials.Finding(ctx))
	}
	return findings
}

// keeperPatience is the time for a keeper to answer. The nest needs less to start another one.
const keeperPatience = 2 * time.Second

// redundancy asks the keeper whether containers survive the death of any two of agent, keeper and
// nest.
func (n *node) redundancy(ctx context.Context) control.Finding {
	ctx, cancel := context.WithTimeout(ctx, keeperPatience)
	defer cancel()
	return doctor.Redundancy(n.keeper.Status(ctx))
}

// redundancyChanged triggers a check of that finding. It never blocks.
func (n *node) redundancyChanged() {
	select {
	case n.exposed <- struct{}{}:
	default: // a check is pending already
	}
}

func (n *node) cgroupFinding() control.Finding {
	switch mode := n.cgroups.Mode(); mode {
	case core.CgroupHybrid:
		return ok("cgroups", "hybrid: controllers on v1, the v2 tree beside them; crun runs in a mount namespace that hides that tree")
	default:
		return ok("cgroups", "%s", mode)
	}
}

func (n *node) runtimeFindings() []control.Finding {
	var all []control.Finding
	for _, r := range n.runtimes.found {
		name, what := "runtime "+r.name, strings.TrimSpace(r.features.Path+" "+r.features.Version)
		switch {
		case r.problem != "":
			all = append(all, warn(name, "install it, or drop the section [runtimes."+r.name+"]", "%s", r.problem))
		case r.broken() != nil:
			all = append(all, fail(name, "restart the agent, which creates it again; containers keep running", "the mount namespace that containers start from is broken: %v", r.broken()))
		case r.name == n.runtimes.chosen:
			all = append(all, ok(name, "%s, the default: %s", what, n.runtimes.why))
		default:
			all = append(all, ok(name, "%s", what))
		}
	}
	return all
}

func (n *node) keeperFinding(ctx context.Context) control.Finding {
	s, err := n.keeper.Status(ctx)
	f := keeperOf(s, err, n.cfg.Agent.State)
	if f.Status == control.FindingOK { // measuring memory takes milliseconds on a full node
		f.Detail += fmt.Sprintf(", %d KB together", (pss(s.KeeperPid)+pss(s.NestPid))/1024)
	}
	return f
}

// keeperOf returns the finding about a keeper, without its memory.
func keeperOf(s core.SupervisorStatus, err error, state string) control.Finding {
	switch {
	case err != nil:
		return fail("keeper", "see "+state+"/keeper", "%v", err)
	case s.Lost > 0:
		return warn("keeper", "check the disk space for the containers' logs; `longshore why` shows which containers lost output", "pid %d, nest %d, %d processes; %d bytes of output were dropped", s.KeeperPid, s.NestPid, s.Processes, s.Lost)
	default:
		return ok("keeper", "pid %d, nest %d, %d processes", s.KeeperPid, s.NestPid, s.Processes)
	}
}

func (n *node) networkFinding(ctx context.Context) control.Finding {
	i, err := n.network.Info(ctx)
	switch {
	case err != nil:
		return fail("network", "", "%v", err)
	case !i.Ready:
		return fail("network", "", "%s: %s", i.Mode, i.Reason)
	}
	if trouble, hint := n.network.Trouble(); trouble != "" {
		return warn("network", hint, "%s: %s", i.Mode, trouble)
	}
	if f, changed := n.tended.finding(i.Mode); changed {
		return f
	}
	return ok("network", "%s, addresses from %v", i.Mode, i.Ranges)
}

func (n *node) imageFinding() control.Finding {
	if problems := trust.New(n.cfg.Images.Policy, n.verifyBinary, n.log).Problems(); len(problems) > 0 {
		return fail("images", "images that images.policy requires to be signed cannot be pulled until this is fixed", "%s", strings.Join(problems, "; "))
	}
	return ok("images", "%s; %s", n.cfg.Agent.Root+"/image", n.images.Confinement())
}

// recently is the time for which doctor reports that connections were near their limit.
const recently = time.Hour

// connectionFinding reports how many connections the faces have, and warns where they are, or
// recently were, near their limit.
func connectionFinding(all []connlimit.Usage, now time.Time) control.Finding {
	var counts, tight, keys []string
	for _, u := range all {
		count := fmt.Sprintf("%s %d of %d", u.Name, u.Open, u.Max)
		counts = append(counts, count)
		if !u.Near.IsZero() && now.Sub(u.Near) < recently {
			tight = append(tight, fmt.Sprintf("%s open; %d idle and %d unauthenticated ones were closed to make room, %d refused",
				count, u.ClosedIdle, u.ClosedUnauthenticated, u.Refused))
			keys = append(keys, u.Key)
		}
	}
	if len(tight) > 0 {
		return warn("connections", "raise "+strings.Join(keys, ", ")+", or find the clients that leave connections open", "near the limit within the last hour: %s", strings.Join(tight, "; "))
	}
	return ok("connections", "open: %s", strings.Join(counts, ", "))
}

// swarmFinding reports the state of the node's membership in a Swarm, if it has one.
func swarmFinding(s swarm.Status) control.Finding {
	switch {
	case s.Expired:
		return fail("swarm", "`longshore swarm leave` ends the tasks; then `longshore swarm join` with the token of `docker swarm join-token worker`, and `docker node rm "+s.NodeID+"`", "%s", s.Error)
	case s.Error != "":
		return warn("swarm", "`longshore swarm status`; tasks run on without a session", "%s", s.Error)
	case s.NodeID == "":
		return ok("swarm", "the node is in no swarm")
	}
	return ok("swarm", "node %s of %s, session %s, certificate until %s", s.NodeID, s.ClusterID, s.Session, s.CertificateEnds.Format(time.RFC3339))
}

// check compares the records with the node, and with images the images' content with its digests.
func (n *node) check(ctx context.Context, images bool) ([]control.Finding, error) {
	violations, err := n.engine.Check(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]control.Finding, 0, len(violations))
	for _, v := range violations {
		all = append(all, fail(v.Kind, "", "%s: %s", v.Object, v.Detail))
	}
	for _, c := range n.mend(true, true) {
		if c.Mended {
			all = append(all, warn("network", "it is restored", "another program has changed it: %s", c.Text))
		} else {
			all = append(all, fail("network", c.Hint, "another program has changed it: %s", c.Text))
		}
	}
	for _, f := range doctor.Space(n.cfg.Agent.Root, n.cfg.Agent.State) {
		if f.Status != control.FindingOK {
			all = append(all, f)
		}
	}
	unused, err := n.engine.All().Volumes.Unused(ctx)
	if err != nil {
		return nil, err
	}
	for _, v := range unused {
		all = append(all, warn("unused", "longshore volume prune", "volume %s/%s is anonymous, and no container uses it", v.Owner, v.Name))
	}
	if err := n.network.Overlays.Intact(); err != nil {
		all = append(all, fail("network", "restart the agent: it restores missing parts", "%v", err))
	}
	if !images {
		return all, nil
	}
	damages, err := n.images.Verify(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range damages {
		if d.Unknown {
			all = append(all, warn("image", "it was unpacked by an older version, without checksums: remove the image and pull it again", "%s of %s cannot be checked: %s", d.Object, d.Image, d.Detail))
		} else {
			all = append(all, fail("image", "pull the image again, then start its containers again", "%s of %s is damaged: %s", d.Object, d.Image, d.Detail))
		}
	}
	return all, nil
}

func (n *node) shownConfig() (string, error) { return n.cfg.Masked() }
