package quadlet

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/longshore/longshore/internal/cli/unitfile"
)

// File is a Quadlet file or a drop-in.
type File struct {
	Path   string
	Data   []byte
	Masked bool // it is a link to /dev/null: those of its name do not count
}

// Options are values of the node.
type Options struct {
	Program string            // path of longshore
	Exists  func(string) bool // reports whether a file of the node exists
}

// Unit is a unit of systemd.
type Unit struct{ Name, Text string }

// Link is a symbolic link in the directory of the units.
type Link struct{ Path, Target string }

// Problem is a message about a file. Without Refused the file is translated nevertheless.
type Problem struct {
	unitfile.Error
	Refused bool
}

// Result has the units of all files.
type Result struct {
	Units    []Unit
	Links    []Link
	Problems []Problem
}

// The kinds of files.
const (
	container = "container"
	volume    = "volume"
	network   = "network"
)

// sections maps the kinds of files to their section.
var sections = map[string]string{container: "Container", volume: "Volume", network: "Network"}

// refusedKinds maps kinds of files that are refused to the reason.
var refusedKinds = map[string]string{
	"kube":     "Longshore reads no Kubernetes YAML: write a .container file for each container",
	"pod":      "there are no pods on the command line: put the containers on one .network, where they find each other by name",
	"image":    "containers pull their images when they start: name the image in the .container file",
	"build":    "Longshore builds no images: build them elsewhere and name the image in the .container file",
	"artifact": "containers pull their artifacts when they start: name the artifact in Mount=type=artifact of the .container file",
}

// source is a parsed file with its drop-ins.
type source struct {
	path, stem, kind string
	file             *unitfile.File
	service          string // name of its unit
	resource         string // name of its container, volume or network
	refused, masked  bool
}

// generator translates a set of files.
type generator struct {
	Options
	sources map[string]*source // by file name
	dropIns []File
	names   map[string]string // path of the file by the name of its unit
	result  Result
}

// Generate translates files. If several have the same name, the first one counts.
func Generate(files []File, o Options) Result {
	g := &generator{Options: o, sources: map[string]*source{}, names: map[string]string{}}
	var order []*source
	for _, f := range files {
		base, dir := path.Base(f.Path), path.Base(path.Dir(f.Path))
		kind := strings.TrimPrefix(path.Ext(base), ".")
		switch {
		case strings.HasSuffix(dir, ".d"):
			if kind == "conf" {
				g.dropIns = append(g.dropIns, f) // a masked one has no lines
			}
			continue
		case g.sources[base] != nil:
			continue
		case f.Masked:
			g.sources[base] = &source{path: f.Path, refused: true, masked: true}
			continue
		case refusedKinds[kind] != "":
			g.refuse(&unitfile.Error{Path: f.Path, Line: 1, Text: "." + kind + " files are refused: " + refusedKinds[kind]})
			continue
		case sections[kind] == "":
			continue
		}
		s := &source{path: f.Path, stem: strings.TrimSuffix(base, "."+kind), kind: kind}
		g.sources[base] = s
		order = append(order, s)
		s.file = &unitfile.File{}
		if err := g.parse(s, f); err != nil {
			s.refused = true
			g.refuse(err)
		}
	}
	// The drop-ins may come after their file.
	for _, s := range order {
		if s.refused {
			continue
		}
		if err := errors.Join(g.addDropIns(s), g.name(s)); err != nil {
			s.refused = true
			g.refuse(err)
		}
	}
	// A container needs its volumes and networks.
	slices.SortStableFunc(order, func(a, b *source) int { return rank(a) - rank(b) })
	for _, s := range order {
		if !s.refused {
			g.translate(s)
		}
	}
	return g.result
}

// rank orders volumes and networks before containers.
func rank(s *source) int {
	if s.kind == container {
		return 1
	}
	return 0
}

// refuse adds the errors that err joins.
func (g *generator) refuse(err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			g.refuse(e)
		}
		return
	}
	var e *unitfile.Error
	if !errors.As(err, &e) {
		e = &unitfile.Error{Text: err.Error()}
	}
	g.result.Problems = append(g.result.Problems, Problem{*e, true})
}

// unitName matches names that may be a part of a unit's name.
var unitName = regexp.MustCompile(`^[A-Za-z0-9:_@%\\][A-Za-z0-9:_.@%\\-]{0,200}$`)

func (g *generator) parse(s *source, f File) (err error) {
	if strings.ContainsFunc(f.Path, unicode.IsControl) {
		return &unitfile.Error{Path: strconv.Quote(f.Path), Line: 1, Text: "the path has control characters"}
	}
	if !unitName.MatchString(s.stem) || strings.Contains(s.stem, "%") {
		return &unitfile.Error{Path: f.Path, Line: 1, Text: fmt.Sprintf("%q cannot be the name of a unit", s.stem)}
	}
	s.file, err = unitfile.Parse(f.Path, f.Data)
	return err
}

// addDropIns adds the drop-ins of a file, in the order of their names. Of those with one name the most specific one counts.
func (g *generator) addDropIns(s *source) error {
	byName := map[string]File{}
	for _, dir := range dropInDirs(s.stem, s.kind) {
		taken := map[string]bool{}
		for _, f := range g.dropIns {
			if base := path.Base(f.Path); path.Base(path.Dir(f.Path)) == dir && !taken[base] {
				byName[base], taken[base] = f, true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		d, err := unitfile.Parse(byName[name].Path, byName[name].Data)
		if err != nil {
			return err
		}
		s.file.Add(d)
	}
	return nil
}

// dropInDirs returns the names of the directories of a file's drop-ins, the most general one first.
func dropInDirs(stem, kind string) []string {
	dirs := []string{kind + ".d"}
	add := func(stem string) {
		for i, c := range stem {
			if c == '-' && i+1 < len(stem) {
				dirs = append(dirs, stem[:i+1]+"."+kind+".d")
			}
		}
		dirs = append(dirs, stem+"."+kind+".d")
	}
	if template, instance, ok := strings.Cut(stem, "@"); ok && instance != "" {
		add(template + "@")
		return append(dirs, stem+"."+kind+".d")
	}
	add(stem)
	return dirs
}

// name finds the names of the unit and of the object of a file.
func (g *generator) name(s *source) error {
	section := sections[s.kind]
	template, instance, isTemplate := strings.Cut(s.stem, "@")
	s.service = s.stem
	if s.kind != container {
		s.service = template + "-" + s.kind
		if isTemplate {
			s.service += "@" + instance
		}
	}
	if e, ok := s.file.Last(section, "ServiceName"); ok {
		if !unitName.MatchString(e.Value) || strings.Contains(e.Value, "%") {
			return e.Errorf("ServiceName=%s cannot be the name of a unit", e.Value)
		}
		s.service = e.Value
	}
	s.service += ".service"
	if s.service == "longshore.service" || s.service == "longshore-hub.service" {
		return &unitfile.Error{Path: s.path, Line: 1, Text: s.service + " is the unit of Longshore itself: write ServiceName="}
	}
	if other := g.names[s.service]; other != "" {
		return &unitfile.Error{Path: s.path, Line: 1, Text: fmt.Sprintf("%s is also the unit of %s", s.service, other)}
	}
	g.names[s.service] = s.path
	switch {
	case s.kind == container && isTemplate:
		s.resource = "systemd-%p_%i"
	case s.kind == container:
		s.resource = "systemd-%N"
	case isTemplate && instance == "":
		s.resource = "systemd-" + template + "-%i"
	case isTemplate:
		s.resource = "systemd-" + template + "-" + instance
	default:
		s.resource = "systemd-" + s.stem
	}
	if e, ok := s.file.Last(section, section+"Name"); ok {
		if strings.HasPrefix(e.Value, "-") {
			return e.Errorf("%s=%s cannot be a name", e.Key, e.Value)
		}
		s.resource = e.Value
	}
	return nil
}

// reference returns the name of a file's unit as other units name it. For a template they add their own instance.
func (s *source) reference() string { return strings.Replace(s.service, "@.service", "@%i.service", 1) }

// translate adds the unit of a file with its links.
func (g *generator) translate(s *source) {
	b := &build{g: g, s: s}
	b.check()
	switch s.kind {
	case container:
		b.container()
	case volume:
		b.volume()
	case network:
		b.network()
	}
	unitSection := b.unitSection()
	serviceSection := b.serviceSection()
	links := b.install()
	g.result.Problems = append(g.result.Problems, b.notes...)
	if err := errors.Join(b.errs...); err != nil {
		s.refused = true
		g.refuse(err)
		return
	}
	var text strings.Builder
	fmt.Fprintf(&text, "# Made by longshore system generator of %s\n", s.path)
	write := func(section string, generated []string) {
		fmt.Fprintf(&text, "[%s]\n", section)
		for _, l := range generated {
			text.WriteString(l + "\n")
		}
		text.WriteString("\n")
	}
	write("Unit", unitSection)
	write("Service", serviceSection)
	for _, sec := range s.file.Sections {
		if sec.Name == sections[s.kind] || sec.Name == "Unit" || sec.Name == "Service" || sec.Name == "Quadlet" {
			continue
		}
		var lines []string
		for _, e := range sec.Entries {
			lines = append(lines, e.Key+"="+e.Value)
		}
		write(sec.Name, lines)
	}
	g.result.Units = append(g.result.Units, Unit{s.service, text.String()})
	g.result.Links = append(g.result.Links, links...)
}
