package agent

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/image/policy"
)

// doctor reports what works on this node, and what to do about the rest. With try it also starts
// a container.
func (n *node) doctor(ctx context.Context, try bool) []control.Finding {
	findings := []control.Finding{n.kernel(), n.cgroupFinding(), n.capabilities(), n.memoryBacked(), deviceFinding()}
	findings = append(findings, n.runtimeFindings()...)
	findings = append(findings, n.keeperFinding(ctx), n.networkFinding(ctx), n.imageFinding(), boardFinding(ctx, n), modulesFinding(n.modules), n.kmsgFinding(), n.checkpointFinding(ctx), connectionFinding(n.limits.Usage(), time.Now()), capacityFinding(ctx, n), inotifyFinding())
	if n.swarm != nil {
		st := n.swarm.Status()
		findings = append(findings, swarmFinding(st), overlayFinding(ctx, n.network.Overlays, st.Overlays), gossipFinding(st), publishedFinding(st.Overlays))
	}
	if try {
		findings = append(findings, trials{n}.finding(ctx))
	}
	return findings
}

func ok(name, format string, args ...any) control.Finding {
	return control.Finding{Name: name, Status: control.FindingOK, Detail: fmt.Sprintf(format, args...)}
}

func warn(name, hint, format string, args ...any) control.Finding {
	return control.Finding{Name: name, Status: control.FindingWarn, Detail: fmt.Sprintf(format, args...), Hint: hint}
}

func fail(name, hint, format string, args ...any) control.Finding {
	return control.Finding{Name: name, Status: control.FindingFail, Detail: fmt.Sprintf(format, args...), Hint: hint}
}

func (n *node) kernel() control.Finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fail("kernel", "", "uname: %v", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	major, rest, _ := strings.Cut(release, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, _ := strconv.Atoi(major)
	y, _ := strconv.Atoi(minor)
	if x < 5 || x == 5 && y < 15 {
		return warn("kernel", "use Linux 5.15 or later", "%s is older than the kernels that Longshore is tested on", release)
	}
	return ok("kernel", "%s", release)
}

func (n *node) cgroupFinding() control.Finding {
	switch mode := n.cgroups.Mode(); mode {
	case core.CgroupHybrid:
		return ok("cgroups", "hybrid: controllers on v1, the v2 tree beside them; crun runs in a mount namespace that hides that tree")
	default:
		return ok("cgroups", "%s", mode)
	}
}

func (n *node) capabilities() control.Finding {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return fail("capabilities", "", "capget: %v", err)
	}
	if d[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return fail("capabilities", "run the agent as root", "CAP_SYS_ADMIN is missing")
	}
	if d[0].Effective&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		return warn("capabilities", "", "CAP_SYS_RESOURCE is missing: lower oom_score_adj and higher hard limits are clamped, and the container's warnings say so")
	}
	return ok("capabilities", "all that are needed")
}

func (n *node) memoryBacked() control.Finding {
	var st unix.Statfs_t
	if err := unix.Statfs(n.cfg.Agent.State, &st); err != nil {
		return fail("state", "", "%s: %v", n.cfg.Agent.State, err)
	}
	if st.Type != unix.TMPFS_MAGIC {
		return warn("state", "mount a tmpfs there", "%s is not on a tmpfs: live records cause disk writes, and are deleted after a boot all the same", n.cfg.Agent.State)
	}
	return ok("state", "%s is on a tmpfs", n.cfg.Agent.State)
}

func (n *node) runtimeFindings() []control.Finding {
	var all []control.Finding
	for _, r := range n.runtimes.found {
		name, what := "runtime "+r.name, strings.TrimSpace(r.features.Path+" "+r.features.Version)
		switch {
		case r.problem != "":
			all = append(all, warn(name, "install it, or drop the section [runtimes."+r.name+"]", "%s", r.problem))
		case r.broken() != nil:
			all = append(all, fail(name, "restart the agent, which makes it again; containers keep running", "the mount namespace that containers start from is broken: %v", r.broken()))
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
	switch {
	case err != nil:
		return fail("keeper", "see "+n.cfg.Agent.State+"/keeper", "%v", err)
	case s.Exposed() != "":
		return warn("keeper", "see "+n.cfg.Agent.State+"/keeper/keeper.log; a keeper of an earlier release gives no copies", "%s", s.Exposed())
	case s.Lost > 0:
		return warn("keeper", "check the disk space for the containers' logs; `longshore why` shows which containers lost output", "pid %d, nest %d, %d processes; %d bytes of output were dropped", s.KeeperPid, s.NestPid, s.Processes, s.Lost)
	default:
		return ok("keeper", "pid %d, nest %d, %d processes, %d KB together", s.KeeperPid, s.NestPid, s.Processes, (pss(s.KeeperPid)+pss(s.NestPid))/1024)
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
	return ok("network", "%s, addresses from %v", i.Mode, i.Ranges)
}

func (n *node) imageFinding() control.Finding {
	if problems := policy.New(n.cfg.Images.Policy, n.verifyBinary, n.log).Problems(); len(problems) > 0 {
		return fail("images", "images that images.policy requires to be signed cannot be pulled until this is fixed", "%s", strings.Join(problems, "; "))
	}
	return ok("images", "%s; %s", n.cfg.Agent.Root+"/image", n.images.Confinement())
}

// recently is how long doctor reports that connections were near their limit.
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

// swarmFinding reports how the node is in its Swarm, if it is in one.
func swarmFinding(s swarm.Status) control.Finding {
	switch {
	case s.Expired:
		return fail("swarm", "`longshore swarm leave` ends the tasks; then `longshore swarm join` with the token of `docker swarm join-token worker`, and `docker node rm "+s.NodeID+"`", "%s", s.Error)
	case s.Error != "":
		return warn("swarm", "`longshore swarm status`; tasks run on without a session", "%s", s.Error)
	case s.NodeID == "":
		return ok("swarm", "the node is in none")
	}
	return ok("swarm", "node %s of %s, session %s, certificate until %s", s.NodeID, s.ClusterID, s.Session, s.CertificateEnds.Format(time.RFC3339))
}

func (n *node) kmsgFinding() control.Finding {
	f, err := os.Open("/dev/kmsg")
	if err != nil {
		return warn("kernel log", "", "/dev/kmsg: %v: out-of-memory kills are known only from the cgroups' counters, without their victim", err)
	}
	_ = f.Close()
	return ok("kernel log", "readable: the victim of an out-of-memory kill is known")
}

// check compares the records with the node, and with images the images' content with what was
// pulled.
func (n *node) check(ctx context.Context, images bool) ([]control.Finding, error) {
	violations, err := n.engine.Check(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]control.Finding, 0, len(violations))
	for _, v := range violations {
		all = append(all, fail(v.Kind, "", "%s: %s", v.Object, v.Detail))
	}
	if err := n.network.Overlays.Check(); err != nil {
		all = append(all, fail("network", "start the agent again: it makes what is missing", "%v", err))
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
			all = append(all, warn("image", "it was unpacked by an older version: remove the image and pull it again to have it checked", "%s of %s cannot be checked: %s", d.Object, d.Image, d.Detail))
		} else {
			all = append(all, fail("image", "pull the image again, then start its containers again", "%s of %s is damaged: %s", d.Object, d.Image, d.Detail))
		}
	}
	return all, nil
}

func (n *node) shownConfig() (string, error) { return n.cfg.Masked() }

// checkpointFinding never warns: nothing in this version needs CRIU.
func (n *node) checkpointFinding(ctx context.Context) control.Finding {
	if err := n.criu.check(ctx); err != nil {
		return ok("checkpoint", "not built yet; CRIU does not work on this node either: %v", err)
	}
	return ok("checkpoint", "not built yet; CRIU works on this node")
}
