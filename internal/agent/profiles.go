package agent

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/adjust"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/profile/apparmor"
)

// profiles loads the default AppArmor profile if the kernel has AppArmor, in place of the profile of
// an older version. A failure ends only the creation of containers that need the profile.
func (n *node) profiles(on bool) adjust.Profiles {
	if !on {
		return nil
	}
	l := &apparmor.Loader{Name: ocispec.DefaultProfile}
	ctx := context.Background()
	if unable, err := l.Load(ctx); err != nil {
		n.log.WarnContext(ctx, "the default AppArmor profile cannot be loaded: containers that need it are refused", "error", err)
	} else if unable != "" {
		n.log.WarnContext(ctx, "containers run without an AppArmor profile", "reason", unable)
	}
	return l
}

// labelled says which containers have SELinux labels without asking for one.
func (n *node) labelled() string {
	switch {
	case n.cfg.Engine.SELinux:
		return "all containers"
	case n.cfg.Face.CRI.Enabled && n.cfg.Face.CRI.SELinux:
		return "all pods"
	}
	return ""
}

// confinementFinding reports which parts of the kernel confine containers. labelled says which of them have SELinux labels
// without asking for one.
func confinementFinding(ctx context.Context, labelled string) control.Finding {
	given, err := ocispec.ReadNode()
	if err != nil {
		return fail("confinement", "", "%v", err)
	}
	var have []string
	if given.Seccomp {
		have = append(have, "seccomp")
	}
	switch {
	case given.SELinux && labelled != "":
		have = append(have, "SELinux ("+labelled+")")
	case given.SELinux:
		have = append(have, "SELinux (requested labels only; see engine.selinux)")
	}
	if v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno == 0 && v > 0 {
		have = append(have, "Landlock (programs with grants, containers with levels)")
	}
	if given.AppArmor {
		l := &apparmor.Loader{Name: ocispec.DefaultProfile}
		switch unable, err := l.Ensure(ctx, l.Name); {
		case err != nil:
			return fail("confinement", "containers with the default AppArmor profile are refused", "%v", err)
		case unable != "":
			return warn("confinement", "install apparmor, or mount securityfs at /sys/kernel/security; then create the containers again", "AppArmor is on, but containers run without a profile: %s", unable)
		}
		have = append(have, "AppArmor (profile "+ocispec.DefaultProfile+")")
	}
	if !given.Seccomp {
		return warn("confinement", "use a kernel with seccomp", "system calls are not filtered; containers are confined by: %s", strings.Join(have, ", "))
	}
	return ok("confinement", "containers are confined by %s", strings.Join(have, ", "))
}
