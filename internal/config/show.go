package config

import (
	"bytes"
	_ "embed"
	"fmt"
	"reflect"

	"github.com/pelletier/go-toml/v2"
)

//go:embed default.toml
var defaultFile string

// DefaultFile returns a configuration file with every key, its meaning and its default.
func DefaultFile() string { return defaultFile }

// masked replaces the value of a secret.
const masked = "<hidden>"

// Masked returns c as TOML. Fields tagged secret:"true" are hidden.
func (c Config) Masked() (string, error) { return maskedOf(c) }

func maskedOf(c any) (string, error) {
	v := reflect.New(reflect.TypeOf(c)).Elem()
	v.Set(reflect.ValueOf(c))
	hide(v)
	return encode(v.Interface())
}

func encode(v any) (string, error) {
	var out bytes.Buffer
	if err := toml.NewEncoder(&out).Encode(v); err != nil {
		return "", fmt.Errorf("show configuration: %w", err)
	}
	return out.String(), nil
}

// hide masks the secrets in the struct v, which must be a copy: values in maps are replaced, not
// changed.
func hide(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Field(i)
			if v.Type().Field(i).Tag.Get("secret") != "true" {
				hide(f)
				continue
			}
			if f.Kind() == reflect.String && f.String() != "" {
				f.SetString(masked)
			} else if f.Kind() != reflect.String {
				f.SetZero()
			}
		}
	case reflect.Map:
		if v.IsNil() || v.Type().Elem().Kind() != reflect.Struct {
			return
		}
		clone := reflect.MakeMapWithSize(v.Type(), v.Len())
		for _, k := range v.MapKeys() {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(k))
			hide(e)
			clone.SetMapIndex(k, e)
		}
		v.Set(clone)
	default:
	}
}
