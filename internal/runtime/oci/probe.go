package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// probe is the program's report about itself.
type probe struct {
	features core.RuntimeFeatures
}

// Features asks the program once for its version and features. The error is Unavailable
// if it cannot be run.
func (r *Runtime) Features(ctx context.Context) (core.RuntimeFeatures, error) {
	p, err := r.probe(ctx)
	if err != nil {
		return core.RuntimeFeatures{}, err
	}
	return p.features, nil
}

func (r *Runtime) probe(ctx context.Context) (*probe, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.probed != nil {
		return r.probed, nil
	}
	st, err := os.Stat(r.o.Path)
	if err != nil || st.IsDir() || st.Mode()&0o111 == 0 {
		return nil, fmt.Errorf("runtime %s: %s is no program: %w", r.o.Name, r.o.Path, errdefs.ErrUnavailable)
	}
	id := identify(r.o.Path, st)
	if f, ok := recall(r.answerFile(), id); ok {
		r.probed = &probe{features: f}
		return r.probed, nil
	}
	res, err := r.o.Launcher.Run(ctx, core.Command{Args: []string{r.o.Path, "--version"}})
	if err != nil {
		return nil, fmt.Errorf("runtime %s: ask for its version: %w", r.o.Name, err)
	}
	if res.Status != 0 {
		return nil, fmt.Errorf("runtime %s: %s --version: exit status %d: %s: %w", r.o.Name, r.o.Path, res.Status, plain(res.Stderr), errdefs.ErrUnavailable)
	}
	name, version, options := parseVersion(string(res.Stdout))
	f := byVersion(name, version, options)
	f.Path = r.o.Path
	res, err = r.o.Launcher.Run(ctx, core.Command{Args: []string{r.o.Path, "features"}})
	if err == nil && res.Status == 0 {
		applyFeatures(&f, res.Stdout)
	}
	r.probed = &probe{features: f}
	if err := remember(r.answerFile(), id, f); err != nil {
		r.log.WarnContext(ctx, "a runtime's answers are not kept, and it will be asked again", "error", err)
	}
	return r.probed, nil
}

// parseVersion parses "crun version 1.8.1" or "runc version 1.1.5+ds1", and crun's line
// of build options ("+SYSTEMD +SELINUX …").
func parseVersion(out string) (name, version string, options []string) {
	for i, line := range strings.Split(out, "\n") {
		f := strings.Fields(line)
		if i == 0 && len(f) >= 3 && f[1] == "version" {
			name, version = f[0], f[2]
		}
		if len(f) > 0 && strings.HasPrefix(f[0], "+") {
			options = f
		}
	}
	return name, version, options
}

// atLeast compares the first numbers of a version: 1.8.1 with 1, 9.
func atLeast(version string, want ...int) bool {
	parts := strings.FieldsFunc(version, func(r rune) bool { return r == '.' || r == '+' || r == '-' || r == '~' })
	for i, w := range want {
		n := 0
		if i < len(parts) {
			n, _ = strconv.Atoi(parts[i])
		}
		if n != w {
			return n > w
		}
	}
	return true
}

// byVersion returns the known features of a program without a features command.
func byVersion(name, version string, options []string) core.RuntimeFeatures {
	f := core.RuntimeFeatures{Version: strings.TrimSpace(name + " " + version), OCIVersionMax: "1.0.2", Seccomp: true}
	switch name {
	case "crun":
		f.CgroupV2, f.UserNamespaces, f.SupplementalGroups, f.CgroupNamespaces = true, true, true, true
		f.RecursiveReadOnly = atLeast(version, 1, 4)
		f.IDMappedMounts = atLeast(version, 1, 5)
		f.Systemd = slices.Contains(options, "+SYSTEMD")
		f.Seccomp = slices.Contains(options, "+SECCOMP")
		f.Checkpoint = slices.Contains(options, "+CRIU")
		// Older versions searched the version for the text "1.0".
		if atLeast(version, 1, 9) {
			f.OCIVersionMax = "1.1.0"
		}
	case "runc":
		f.CgroupV2, f.UserNamespaces, f.SupplementalGroups, f.Systemd, f.CgroupNamespaces = atLeast(version, 1), true, true, true, atLeast(version, 1)
		f.Checkpoint = true
		f.RecursiveReadOnly = atLeast(version, 1, 1)
		f.IDMappedMounts = atLeast(version, 1, 2)
		if atLeast(version, 1, 2) {
			f.OCIVersionMax = "1.2.0"
		}
	}
	return f
}

// applyFeatures applies the output of the features command.
func applyFeatures(f *core.RuntimeFeatures, out []byte) {
	var reported struct {
		OCIVersionMax string            `json:"ociVersionMax"`
		MountOptions  []string          `json:"mountOptions"`
		Annotations   map[string]string `json:"annotations"`
		Linux         *struct {
			Namespaces []string `json:"namespaces"`
			Cgroup     *struct {
				V2      *bool `json:"v2"`
				Systemd *bool `json:"systemd"`
			} `json:"cgroup"`
			Seccomp *struct {
				Enabled *bool `json:"enabled"`
			} `json:"seccomp"`
			MountExtensions *struct {
				IDMap *struct {
					Enabled *bool `json:"enabled"`
				} `json:"idmap"`
			} `json:"mountExtensions"`
		} `json:"linux"`
	}
	if json.Unmarshal(out, &reported) != nil {
		return
	}
	if reported.OCIVersionMax != "" {
		f.OCIVersionMax = reported.OCIVersionMax
	}
	if len(reported.MountOptions) > 0 {
		f.RecursiveReadOnly = slices.Contains(reported.MountOptions, "rro")
		f.RecursiveIDMaps = slices.Contains(reported.MountOptions, "ridmap")
	}
	take := func(to *bool, from *bool) {
		if from != nil {
			*to = *from
		}
	}
	if l := reported.Linux; l != nil {
		f.UserNamespaces, f.CgroupNamespaces = slices.Contains(l.Namespaces, "user"), slices.Contains(l.Namespaces, "cgroup")
		if l.Cgroup != nil {
			take(&f.CgroupV2, l.Cgroup.V2)
			take(&f.Systemd, l.Cgroup.Systemd)
		}
		if l.Seccomp != nil {
			take(&f.Seccomp, l.Seccomp.Enabled)
		}
		if l.MountExtensions != nil && l.MountExtensions.IDMap != nil {
			take(&f.IDMappedMounts, l.MountExtensions.IDMap.Enabled)
		}
	}
	for _, key := range []string{"org.opencontainers.runc.checkpoint.enabled", "run.oci.crun.checkpoint.enabled"} {
		if reported.Annotations[key] != "" {
			f.Checkpoint = reported.Annotations[key] == "true"
		}
	}
}
