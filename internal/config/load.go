package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// DefaultPath is where the agent looks for its configuration.
const DefaultPath = "/etc/longshore/config.toml"

// LoadDefault loads DefaultPath; the file need not exist.
func LoadDefault() (Config, error) { return load(DefaultPath, true) }

// Load reads the file at path, and then conf.d/*.toml beside it in lexical order. Keys that they
// do not set are as in Default. Load checks the form of each file; Validate checks the values.
func Load(path string) (Config, error) { return load(path, false) }

func load(path string, optional bool) (Config, error) {
	cfg := Default()
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist) && optional:
	case err != nil:
		return cfg, fmt.Errorf("read configuration: %w", err)
	default:
		if err := decode(path, data, &cfg); err != nil {
			return cfg, err
		}
	}
	more, err := filepath.Glob(filepath.Join(filepath.Dir(path), "conf.d", "*.toml"))
	if err != nil {
		return cfg, fmt.Errorf("read configuration: %w", err)
	}
	slices.Sort(more)
	for _, file := range more {
		data, err := os.ReadFile(file)
		if err != nil {
			return cfg, fmt.Errorf("read configuration: %w", err)
		}
		if err := decode(file, data, &cfg); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

// Parse parses the content of one file over the defaults. InvalidArgument, with the line, when it
// is not TOML or has an unknown key.
func Parse(name string, data []byte) (Config, error) {
	cfg := Default()
	return cfg, decode(name, data, &cfg)
}

func decode(name string, data []byte, cfg *Config) error {
	dec := toml.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err := dec.Decode(cfg)
	if err == nil {
		return nil
	}
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) {
		var errs []error
		for _, e := range strict.Errors {
			row, _ := e.Position()
			errs = append(errs, fmt.Errorf("%s:%d: unknown key %s%s: %w", name, row, strings.Join(e.Key(), "."), hint(e.Key()), errdefs.ErrInvalidArgument))
		}
		return errors.Join(errs...)
	}
	var wrong *toml.DecodeError
	if errors.As(err, &wrong) {
		row, _ := wrong.Position()
		key := ""
		if len(wrong.Key()) > 0 {
			key = strings.Join(wrong.Key(), ".") + ": "
		}
		return fmt.Errorf("%s:%d: %s%s: %w", name, row, key, strings.TrimPrefix(wrong.Error(), "toml: "), errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("%s: %s: %w", name, strings.TrimPrefix(err.Error(), "toml: "), errdefs.ErrInvalidArgument)
}

// hint suggests the known key that is nearest to an unknown one, if any is near.
func hint(key []string) string {
	asked := strings.Join(key, ".")
	last := key[len(key)-1]
	best, bestDistance := "", len(last)/2+1
	for _, k := range sections(Keys()) {
		// A key may be misspelled, or be right but in the wrong section.
		d := distance(k, asked)
		if tail := k[strings.LastIndexByte(k, '.')+1:]; tail == last {
			d = min(d, 1)
		}
		if d < bestDistance {
			best, bestDistance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return " (did you mean " + best + "?)"
}

// sections adds to keys the sections that contain them.
func sections(keys []string) []string {
	all := slices.Clone(keys)
	for _, k := range keys {
		for i := strings.LastIndexByte(k, '.'); i > 0; i = strings.LastIndexByte(k[:i], '.') {
			all = append(all, k[:i])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Keys returns all keys that a file may have, as dotted paths, in the order of the structs. For
// the keys of a map it has NAME.
func Keys() []string { return keysOf(reflect.TypeFor[Config](), "") }

func keysOf(t reflect.Type, prefix string) []string {
	var keys []string
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("toml")
		if name == "" || name == "-" {
			continue
		}
		switch ft := f.Type; {
		case ft.Kind() == reflect.Struct:
			keys = append(keys, keysOf(ft, prefix+name+".")...)
		case ft.Kind() == reflect.Map && ft.Elem().Kind() == reflect.Struct:
			keys = append(keys, keysOf(ft.Elem(), prefix+name+".NAME.")...)
		default:
			keys = append(keys, prefix+name)
		}
	}
	return keys
}

// distance returns the number of edits between a and b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d++
			}
			diagonal = row[j+1]
			row[j+1] = min(d, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
