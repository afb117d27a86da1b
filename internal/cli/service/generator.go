package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/quadlet"
)

// GeneratorName is the name of this program among systemd's generators.
const GeneratorName = "longshore-generator"

// quadletDirs are the directories of Quadlet files, the one that counts first.
var quadletDirs = []string{"/run/containers/systemd", "/etc/containers/systemd", "/usr/share/containers/systemd"}

// generatorDirs are the directories of systemd's generators. A file in an earlier one replaces that of the same name in a later
// one.
var generatorDirs = []string{"/run/systemd/system-generators", "/etc/systemd/system-generators", "/usr/local/lib/systemd/system-generators", "/usr/lib/systemd/system-generators", "/lib/systemd/system-generators"}

// podmanGenerator is the name of Podman's own generator.
const podmanGenerator = "podman-system-generator"

// NewGenerator returns the command system generator.
func NewGenerator(a *base.App) *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use:   "generator [--dry-run] [NORMAL [EARLY LATE]]",
		Short: "Write systemd units for Quadlet files",
		Long: "Write systemd units for the Quadlet files (.container, .volume, .network) in " + strings.Join(quadletDirs, ", ") + "\n" +
			"and the directories below, or in those of $QUADLET_UNIT_DIRS, into the directory NORMAL. systemd calls it as " + GeneratorName + " when it reads\n" +
			"its units. It does nothing where Podman's own generator is installed. With --dry-run it prints the units, even beside Podman's.",
		Example: "  longshore system generator --dry-run\n  QUADLET_UNIT_DIRS=./units longshore system generator --dry-run",
		Args: func(_ *cobra.Command, args []string) error {
			if n := len(args); dry && n > 0 || !dry && n != 1 && n != 3 {
				return &base.UsageError{Err: fmt.Errorf("NORMAL, or the three directories that systemd gives a generator, or --dry-run is needed: got %d arguments", n)}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			g := generator{App: a, dirs: quadletDirs, others: generatorDirs, log: "/dev/kmsg"}
			if own := a.Getenv("QUADLET_UNIT_DIRS"); own != "" {
				g.dirs = filepath.SplitList(own)
			}
			if dry {
				return g.print()
			}
			return g.write(args[0])
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print the units instead of writing them")
	return cmd
}

// generator is systemd's generator of the units of Quadlet files.
type generator struct {
	*base.App
	dirs   []string // of Quadlet files
	others []string // of generators
	log    string   // file of the kernel's log: systemd keeps no output of generators
}

// podmans reports whether Podman's generator is installed. One that is masked by a link to /dev/null or an empty file is not.
func (g *generator) podmans() bool {
	for _, dir := range g.others {
		info, err := os.Stat(filepath.Join(dir, podmanGenerator))
		if err == nil {
			return info.Mode().IsRegular() && info.Size() > 0
		}
	}
	return false
}

// units translates all files. A file that cannot be read is a problem like any other.
func (g *generator) units() quadlet.Result {
	files, errs := load(g.dirs)
	r := quadlet.Generate(files, quadlet.Options{Program: executable(), Exists: func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}})
	for _, err := range errs {
		p := quadlet.Problem{Refused: true}
		p.Text = err.Error()
		r.Problems = append(r.Problems, p)
	}
	return r
}

// report passes the problems to warn, and returns an error if a file was refused.
func report(r quadlet.Result, warn func(text string)) error {
	refused := false
	for _, p := range r.Problems {
		text := p.Text
		if p.Path != "" {
			text = p.Error.Error()
		}
		warn(text)
		refused = refused || p.Refused
	}
	if refused {
		return &base.ExitError{Status: 1}
	}
	return nil
}

// print prints the units and links.
func (g *generator) print() error {
	r := g.units()
	for _, u := range r.Units {
		if err := g.Print("--- %s\n%s", u.Name, u.Text); err != nil {
			return err
		}
	}
	for _, l := range r.Links {
		if err := g.Print("--- %s -> %s\n", l.Path, l.Target); err != nil {
			return err
		}
	}
	return report(r, func(text string) { g.Warn("%s", text) })
}

// maxLine is the size of the largest message to the kernel's log, in bytes.
const maxLine = 900

// logLine writes a warning to standard error and to the kernel's log. The journal has the lines of the latter.
func (g *generator) logLine(text string) {
	g.Warn("%s", text)
	f, err := os.OpenFile(g.log, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	_, _ = fmt.Fprintf(f, "<4>%s[%d]: %s\n", GeneratorName, os.Getpid(), base.OneLine(text[:min(len(text), maxLine)]))
}

// write writes the units into a directory, unless Podman's generator does it. A refused file has no unit.
func (g *generator) write(to string) error {
	if g.podmans() {
		return nil
	}
	r := g.units()
	var errs []error
	for _, u := range r.Units {
		// Another mode would hide nothing: every user can read units through systemd.
		errs = append(errs, os.WriteFile(filepath.Join(to, u.Name), []byte(u.Text), 0o644))
	}
	for _, l := range r.Links {
		name := filepath.Join(to, l.Path)
		err := os.MkdirAll(filepath.Dir(name), 0o755)
		if err == nil {
			err = os.Symlink(l.Target, name)
		}
		if !errors.Is(err, fs.ErrExist) { // two files may have the same alias
			errs = append(errs, err)
		}
	}
	// systemd reads its units often: the log gets the refused files alone, and --dry-run shows the notes.
	r.Problems = slices.DeleteFunc(r.Problems, func(p quadlet.Problem) bool { return !p.Refused })
	return errors.Join(append(errs, report(r, g.logLine))...)
}

// load reads the files below directories, those of the first directory first. It leaves out the directories of rootless users.
func load(dirs []string) (files []quadlet.File, errs []error) {
	seen := map[string]bool{}
	var walk func(dir string, top bool)
	walk = func(dir string, top bool) {
		place, err := filepath.EvalSymlinks(dir)
		if err != nil || seen[place] { // a missing directory has no files, and links may lead in a circle
			return
		}
		seen[place] = true
		entries, err := os.ReadDir(dir)
		if err != nil {
			errs = append(errs, err)
			return
		}
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			info, err := os.Stat(name)
			switch {
			case err != nil:
				errs = append(errs, err)
			case info.IsDir() && (!top || e.Name() != "users"):
				walk(name, false)
			case isNull(name) && read(name):
				files = append(files, quadlet.File{Path: name, Masked: true})
			case info.Mode().IsRegular() && read(name):
				f, err := readFile(name)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				files = append(files, f)
			}
		}
	}
	for _, dir := range dirs {
		walk(dir, true)
	}
	return files, errs
}

// isNull reports whether a file is a link to /dev/null.
func isNull(name string) bool {
	target, err := filepath.EvalSymlinks(name)
	return err == nil && target == os.DevNull
}

// read reports whether a file may be a Quadlet file or a drop-in.
func read(name string) bool {
	return slices.Contains([]string{".container", ".volume", ".network", ".kube", ".pod", ".image", ".build", ".artifact", ".conf"}, filepath.Ext(name))
}

// maxQuadlet is the size of the largest Quadlet file.
const maxQuadlet = 1 << 20

func readFile(name string) (quadlet.File, error) {
	info, err := os.Stat(name)
	if err != nil {
		return quadlet.File{}, err
	}
	if info.Size() > maxQuadlet {
		return quadlet.File{}, fmt.Errorf("%s has more than %d bytes", name, maxQuadlet)
	}
	data, err := os.ReadFile(name)
	return quadlet.File{Path: name, Data: data}, err
}
