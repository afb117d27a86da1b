package quadlet

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/longshore/longshore/internal/cli/runflags"
	"github.com/longshore/longshore/internal/cli/unitfile"
)

// container adds the lines of a container's service.
func (b *build) container() {
	image, ok := b.s.file.Last("Container", "Image")
	switch {
	case !ok:
		b.fail(&unitfile.Error{Path: b.s.path, Line: 1, Text: "[Container] has no Image="})
	case strings.HasSuffix(image.Value, ".image"), strings.HasSuffix(image.Value, ".build"):
		b.fail(image.Errorf("Image=%s is refused: %s", image.Value, refusedKinds[image.Value[strings.LastIndexByte(image.Value, '.')+1:]]))
	case strings.HasPrefix(image.Value, "-"):
		b.fail(image.Errorf("Image=%s is not the name of an image", image.Value))
	}
	b.userFlag()
	readOnly, err := b.s.file.Bool("Container", "ReadOnly", false)
	b.fail(err)
	writable, err := b.s.file.Bool("Container", "ReadOnlyTmpfs", true)
	b.fail(err)
	if readOnly && writable {
		taken := b.targets()
		for _, t := range []struct{ target, options string }{{"/run", "mode=755"}, {"/tmp", "mode=1777"}, {"/var/tmp", "mode=1777"}} {
			if !taken[t.target] {
				b.flag("tmpfs", t.target+":nosuid,nodev,"+t.options)
			}
		}
	}
	flags, command := b.programArgs()
	b.args = append(append(b.args, flags...), image.Value)
	b.args = append(b.args, command...)
	b.parsed()

	start := []string{"run", "--name=" + b.s.resource, "--replace", "--rm"}
	kind, ok := b.s.file.Last("Service", "Type")
	switch {
	case !ok || kind.Value == "notify":
		ready := "running"
		if e, ok := b.s.file.Last("Container", "Notify"); ok && e.Value == "healthy" {
			ready = "healthy"
		}
		start = append(start, "--sdnotify="+ready)
		b.service = append(b.service, "Type=notify", "NotifyAccess=main")
	case kind.Value == "oneshot":
		// It is a service that ends: readiness is its end.
		start = append(start, "--sdnotify=running")
	default:
		b.fail(kind.Errorf("Type=%s is refused: a container is notify or oneshot", kind.Value))
	}
	b.service = append([]string{
		"KillMode=mixed", "SyslogIdentifier=%N", "SuccessExitStatus=129 130 141 143",
		"ExecStart=" + b.command(append(start, b.args...)...),
		"ExecStop=-" + b.command("stop", "--ignore", b.s.resource),
		"ExecStopPost=-" + b.command("rm", "--force", "--volumes", "--ignore", b.s.resource),
	}, b.service...)
}

// targets returns the paths in the container that the file itself mounts something on.
func (b *build) targets() map[string]bool {
	taken := map[string]bool{}
	for _, a := range b.args {
		flag, value, _ := strings.Cut(a, "=")
		part := strings.Split(value, ":")
		switch {
		case flag == "--tmpfs":
			taken[path.Clean(part[0])] = true
		case flag == "--volume" && (len(part) == 1 || !strings.HasPrefix(part[1], "/")):
			taken[path.Clean(part[0])] = true
		case flag == "--volume":
			taken[path.Clean(part[1])] = true
		case flag == "--mount":
			for f := range strings.SplitSeq(value, ",") {
				if name, target, _ := strings.Cut(f, "="); slices.Contains([]string{"destination", "target", "dst"}, name) {
					taken[path.Clean(target)] = true
				}
			}
		}
	}
	return taken
}

// parsed reads the arguments as run would, so that a wrong value is found when systemd reads its units. Arguments that systemd
// expands, and files that are read at the start, are checked at the start.
func (b *build) parsed() {
	args := slices.DeleteFunc(slices.Clone(b.args), func(a string) bool {
		return strings.HasPrefix(a, "--env-file=") || strings.HasPrefix(a, "--security-opt=seccomp=/")
	})
	if len(b.errs) > 0 || slices.ContainsFunc(args, expands) {
		return
	}
	f := runflags.New()
	fl := pflag.NewFlagSet("run", pflag.ContinueOnError)
	f.Define(fl)
	err := fl.Parse(args)
	if err == nil {
		err = f.Fill(fl, fl.Args(), func(string) string { return "" })
	}
	if err != nil {
		b.fail(&unitfile.Error{Path: b.s.path, Line: 1, Text: err.Error()})
	}
}

// dependencies are the keys of [Unit] that name other units.
var dependencies = []string{"Wants", "Requires", "Requisite", "BindsTo", "PartOf", "Upholds", "Conflicts", "Before", "After"}

// unitSection returns the lines of [Unit].
func (b *build) unitSection() []string {
	lines := []string{"SourcePath=" + unitfile.Specifiers(b.s.path)}
	pull, err := b.s.file.Bool("Quadlet", "DefaultDependencies", true)
	b.fail(err)
	if pull {
		lines = append(lines, "Wants=network-online.target", "After=network-online.target")
	}
	// Wanted, not required: systemd would stop the container with a required agent.
	lines = append(lines, "Wants=longshore.service", "After=longshore.service")
	for _, d := range b.deps {
		lines = append(lines, "Requires="+d, "After="+d)
	}
	for _, m := range b.mounts {
		lines = append(lines, "RequiresMountsFor="+unitfile.Quote(m))
	}
	if _, ok := b.s.file.Last("Unit", "Description"); !ok {
		lines = append(lines, "Description="+strings.ToUpper(b.s.kind[:1])+b.s.kind[1:]+" of "+unitfile.Specifiers(path.Base(b.s.path)))
	}
	for _, e := range b.s.file.Section("Unit") {
		if slices.Contains(dependencies, e.Key) {
			e.Value = b.translated(e)
		}
		lines = append(lines, e.Key+"="+e.Value)
	}
	return lines
}

// translated replaces names of Quadlet files by those of their units.
func (b *build) translated(e unitfile.Entry) string {
	list := strings.Fields(e.Value)
	for i, name := range list {
		kind := strings.TrimPrefix(path.Ext(name), ".")
		switch s := b.g.sources[name]; {
		case s != nil && s.masked:
			b.fail(e.Errorf("%s=%s: %s is masked", e.Key, e.Value, name))
		case s != nil && !s.refused:
			list[i] = s.reference()
		case s != nil:
			b.fail(e.Errorf("%s=%s: %s was refused", e.Key, e.Value, name))
		case sections[kind] != "" || refusedKinds[kind] != "":
			b.fail(e.Errorf("%s=%s: there is no file %s", e.Key, e.Value, name))
		}
	}
	return strings.Join(list, " ")
}

// limits are the beginnings of the keys of [Service] that limit the processes of the unit.
var limits = []string{"CPU", "Memory", "Tasks", "IO", "Block", "Slice", "IPAddress", "Device", "Allowed", "Startup", "Limit", "OOM"}

// serviceSection returns the lines of [Service].
func (b *build) serviceSection() []string {
	lines := b.service
	for _, e := range b.s.file.Section("Service") {
		switch {
		case e.Value == "" && slices.Contains([]string{"ExecStart", "ExecStop", "ExecStopPost", "ExecReload"}, e.Key):
			continue // it would remove the lines above; podman's generator writes them after it
		case e.Key == "ExecStart":
			b.fail(e.Errorf("[Service] ExecStart= is refused: it is made of the section [%s]", sections[b.s.kind]))
		case e.Key == "User" || e.Key == "Group" || e.Key == "DynamicUser":
			b.fail(e.Errorf("[Service] %s= is refused: only root may use the agent; use User= in [Container] or UserNS=auto", e.Key))
		case b.s.kind == container && slices.ContainsFunc(limits, func(l string) bool { return strings.HasPrefix(e.Key, l) }):
			b.note(e, "this limits the command that waits for the container; the container is in the agent's cgroup: use the keys of [Container]")
		}
		lines = append(lines, e.Key+"="+e.Value)
	}
	return lines
}

// installs maps the keys of [Install] to the endings of directories of links.
var installs = []struct{ key, ending string }{{"WantedBy", ".wants"}, {"RequiredBy", ".requires"}, {"UpheldBy", ".upholds"}}

// install returns the links of [Install].
func (b *build) install() (links []Link) {
	service := b.s.service
	if template, ok := strings.CutSuffix(service, "@.service"); ok {
		e, ok := b.s.file.Last("Install", "DefaultInstance")
		if !ok {
			return nil // only its instances can be started
		}
		service = template + "@" + e.Value + ".service"
		if !unitName.MatchString(service) || expands(service) {
			b.fail(e.Errorf("DefaultInstance=%s cannot be a part of a unit's name", e.Value))
			return nil
		}
	}
	names := func(key string) (list []string) {
		for _, e := range b.s.file.All("Install", key) {
			for _, name := range strings.Fields(e.Value) {
				if !unitName.MatchString(name) || expands(name) || path.Ext(name) == "" {
					b.fail(e.Errorf("%s=%s is not the name of a unit", key, name))
					continue
				}
				list = append(list, name)
			}
		}
		return list
	}
	for _, name := range names("Alias") {
		if name != service {
			links = append(links, Link{name, b.s.service})
		}
	}
	for _, i := range installs {
		for _, name := range names(i.key) {
			links = append(links, Link{fmt.Sprintf("%s%s/%s", name, i.ending, service), "../" + b.s.service})
		}
	}
	for _, e := range b.s.file.Section("Install") {
		if e.Key == "Also" {
			b.note(e, "ignored: a generated unit enables no other one")
		}
	}
	return links
}
