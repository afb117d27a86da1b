package present

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/dockertypes"
)

// Filled is a document of inspect, info or version. A template is executed as docker's command line does it: with the
// members of docker's Go types, or else with those of the JSON document, which also has our own members.
type Filled struct {
	typed any            // a pointer to a type of package docker
	whole map[string]any // typed as JSON with every member, and our own members
}

// MarshalJSON implements json.Marshaler: the whole document.
func (f Filled) MarshalJSON() ([]byte, error) { return marshal(f.whole) }

// filled returns the document of typed with members of our own, which may be below docker's.
func filled(typed any, own map[string]any) Filled {
	whole, _ := plainValue(reflect.ValueOf(typed)).(map[string]any)
	overlay(whole, own)
	return Filled{typed, whole}
}

// overlay adds the members of own to those of doc, at any depth. Lists are joined element by element.
func overlay(doc, own map[string]any) {
	for name, v := range own {
		switch v := v.(type) {
		case map[string]any:
			if below, ok := doc[name].(map[string]any); ok {
				overlay(below, v)
				continue
			}
		case []map[string]any:
			if list, ok := doc[name].([]any); ok && len(list) == len(v) {
				for i := range list {
					if below, ok := list[i].(map[string]any); ok {
						overlay(below, v[i])
					}
				}
				continue
			}
		}
		doc[name] = v
	}
}

// plainValue returns a value of package docker as JSON values. It keeps members that encoding/json would omit, so that a
// script need not test for their presence.
func plainValue(v reflect.Value) any {
	switch x := v.Interface().(type) {
	case time.Time:
		return x.Format(time.RFC3339Nano)
	case []byte:
		return string(x)
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return plainValue(v.Elem())
	case reflect.Struct:
		out := map[string]any{}
		for i := range v.NumField() {
			field := v.Type().Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			switch below := plainValue(v.Field(i)); {
			case name == "-":
			case field.Anonymous:
				if members, ok := below.(map[string]any); ok {
					maps.Copy(out, members)
				}
			case name == "":
				out[field.Name] = below
			default:
				out[name] = below
			}
		}
		return out
	case reflect.Map:
		if v.IsNil() {
			return nil
		}
		out := map[string]any{}
		for _, k := range v.MapKeys() {
			out[k.String()] = plainValue(v.MapIndex(k))
		}
		return out
	case reflect.Slice, reflect.Array:
		if v.Kind() == reflect.Slice && v.IsNil() {
			return nil
		}
		out := make([]any, v.Len())
		for i := range out {
			out[i] = plainValue(v.Index(i))
		}
		return out
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return v.Uint()
	case reflect.String:
		return v.String()
	}
	return v.Interface()
}

// Document returns the document of inspect for an agent's record: the members of docker's document, some of podman's, and
// the whole record as Record. For a kind other than container and image the document is the record alone.
func Document(kind string, record []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(record))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("read the agent's record: %w", err)
	}
	r, ok := numbers(v).(map[string]any)
	if !ok {
		return v, nil
	}
	switch kind {
	case "container":
		return container(r), nil
	case "image":
		return image(r), nil
	}
	return r, nil
}

// numbers converts numbers to integers, for comparisons in templates.
func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil { // such as RLIM_INFINITY
			return n
		}
		f, err := v.Float64()
		if err != nil {
			return v.String()
		}
		return f
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	}
	return v
}

// object is a JSON object, read by paths of members. A missing member is the zero value.
type object map[string]any

func (o object) at(names ...string) any {
	var v any = map[string]any(o)
	for _, n := range names {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[n]
	}
	return v
}

func (o object) has(names ...string) bool { return o.at(names...) != nil }

func (o object) text(names ...string) string {
	s, _ := o.at(names...).(string)
	return s
}

func (o object) number(names ...string) int64 {
	n, _ := o.at(names...).(int64)
	return n
}

func (o object) boolean(names ...string) bool {
	b, _ := o.at(names...).(bool)
	return b
}

func (o object) object(names ...string) object {
	m, _ := o.at(names...).(map[string]any)
	return m
}

// objects returns the objects of a list.
func (o object) objects(names ...string) (list []object) {
	all, _ := o.at(names...).([]any)
	for _, v := range all {
		if m, ok := v.(map[string]any); ok {
			list = append(list, m)
		}
	}
	return list
}

// texts returns the strings of a list, nil for none.
func (o object) texts(names ...string) (list []string) {
	all, _ := o.at(names...).([]any)
	for _, v := range all {
		if s, ok := v.(string); ok {
			list = append(list, s)
		}
	}
	return list
}

// textMap returns the strings of an object, nil for none.
func (o object) textMap(names ...string) map[string]string {
	members := o.object(names...)
	if len(members) == 0 {
		return nil
	}
	out := map[string]string{}
	for name, v := range members {
		if s, ok := v.(string); ok {
			out[name] = s
		}
	}
	return out
}

// members returns the names of the members of an object as docker's set, nil for none.
func (o object) members(names ...string) map[string]struct{} {
	members := o.object(names...)
	if len(members) == 0 {
		return nil
	}
	out := map[string]struct{}{}
	for name := range members {
		out[name] = struct{}{}
	}
	return out
}

// orNone returns list, or an empty one that is not nil: docker's JSON has [] there.
func orNone[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// graphDriver returns docker's description of the storage of an object.
func graphDriver(data map[string]string) dockertypes.GraphDriver {
	return dockertypes.GraphDriver{Name: storageDriver, Data: data}
}

// storageDriver is the name of the agent's storage.
const storageDriver = "overlay"
