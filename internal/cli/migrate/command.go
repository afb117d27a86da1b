package migrate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/config"
)

// written is the name of the file of settings below Dir.
const written = "conf.d/60-migrated.toml"

// New returns the command migrate.
func New(a *base.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Translate the configuration of another container runtime",
		Long: "Read the configuration of another container runtime and print the agent's: its settings, and as comments what has no\n" +
			"counterpart, with what to do instead. Nothing is changed without --write, and images and pods are not moved.",
		Args: cobra.ArbitraryArgs,
		RunE: base.NeedsCommand,
	}
	cmd.AddCommand(newSource(a, "containerd", ContainerdConfig, Containerd), newSource(a, "crio", CRIOConfig, CRIO))
	return cmd
}

func newSource(a *base.App, name, path string, read func(fs.FS, string) (*Result, error)) *cobra.Command {
	var write bool
	cmd := &cobra.Command{
		Use:   name,
		Short: "Translate the configuration of " + name,
		Args:  base.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			abs, err := filepath.Abs(path)
			if err != nil {
				return err
			}
			r, err := read(os.DirFS("/"), abs)
			if err != nil {
				return err
			}
			Check(r)
			text, err := r.TOML("Made by longshore migrate " + name + " of " + abs + ".")
			if err != nil {
				return err
			}
			cfg, err := config.Parse(written, text)
			if err == nil {
				err = cfg.Validate()
			}
			if err != nil {
				return errors.Join(a.Print("%s", text), fmt.Errorf("these settings are not valid, and nothing was written: %w", err))
			}
			if write {
				names, err := Write("/", r, text)
				if err != nil {
					return err
				}
				for _, n := range r.Notes {
					if err := a.Print("%s\n", n); err != nil {
						return err
					}
				}
				return a.Print("wrote %s; check it by longshore config check, then restart the agent\n", strings.Join(names, ", "))
			}
			for _, f := range r.Files {
				text = append(text, "# --write also makes "+f.Name+"\n"...)
			}
			return a.Print("%s", text)
		},
	}
	cmd.Flags().StringVar(&path, "config", path, "the file to read")
	cmd.Flags().BoolVar(&write, "write", false, "write the settings to "+Dir+"/"+written+", and the files of registries beside it")
	return cmd
}

// Check moves settings with values that the agent refuses to the notes.
func Check(r *Result) {
	r.Settings = slices.DeleteFunc(r.Settings, func(s Setting) bool {
		one := Result{Settings: []Setting{s}}
		text, err := one.TOML("")
		if err == nil {
			_, err = config.Parse("its value", text)
		}
		if err != nil {
			r.note(s.From, "%v is not valid here: %v", s.Value, err)
		}
		return err != nil
	})
}

// Write writes the settings and the files below root. It replaces no file, and leaves nothing when one cannot be written.
func Write(root string, r *Result, text []byte) (names []string, err error) {
	files := append(slices.Clone(r.Files), File{Name: filepath.Join(Dir, written), Body: text, Mode: 0o644})
	for _, f := range files {
		if _, err := os.Lstat(filepath.Join(root, f.Name)); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s exists already; remove it first, or use the output without --write: %w", f.Name, errors.Join(err, errdefs.ErrAlreadyExists))
		}
	}
	defer func() {
		if err == nil {
			return
		}
		for _, name := range names {
			err = errors.Join(err, os.Remove(filepath.Join(root, name)))
		}
	}()
	for _, f := range files {
		name := filepath.Join(root, f.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return names, err
		}
		w, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, f.Mode)
		if err != nil {
			return names, err
		}
		names = append(names, f.Name)
		_, err = w.Write(f.Body)
		if err = errors.Join(err, w.Close()); err != nil {
			return names, err
		}
	}
	return names, nil
}
