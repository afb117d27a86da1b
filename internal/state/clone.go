package state

import (
	"reflect"
	"time"
)

// clone returns a deep copy of v in the form that v would have after a round
// through JSON: times without a monotonic part and in UTC, fields that are not
// stored (json:"-", functions) zero, empty maps and slices nil. So what a
// reader gets does not depend on whether the agent was restarted meanwhile.
func clone[T any](v T) T {
	var out T
	copyValue(reflect.ValueOf(&out).Elem(), reflect.ValueOf(&v).Elem())
	return out
}

//nolint:gochecknoglobals // constant
var timeType = reflect.TypeFor[time.Time]()

func copyValue(dst, src reflect.Value) {
	switch src.Kind() {
	case reflect.Pointer:
		if src.IsNil() {
			return
		}
		p := reflect.New(src.Type().Elem())
		copyValue(p.Elem(), src.Elem())
		dst.Set(p)
	case reflect.Slice:
		copySlice(dst, src)
	case reflect.Map:
		if src.Len() == 0 {
			return
		}
		m := reflect.MakeMapWithSize(src.Type(), src.Len())
		for it := src.MapRange(); it.Next(); {
			v := reflect.New(src.Type().Elem()).Elem()
			copyValue(v, it.Value())
			m.SetMapIndex(it.Key(), v)
		}
		dst.Set(m)
	case reflect.Struct:
		copyStruct(dst, src)
	case reflect.Array:
		for i := range src.Len() {
			copyValue(dst.Index(i), src.Index(i))
		}
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
	default:
		dst.Set(src)
	}
}

func copySlice(dst, src reflect.Value) {
	if src.Len() == 0 {
		return
	}
	s := reflect.MakeSlice(src.Type(), src.Len(), src.Len())
	if plain(src.Type().Elem().Kind()) {
		reflect.Copy(s, src)
	} else {
		for i := range src.Len() {
			copyValue(s.Index(i), src.Index(i))
		}
	}
	dst.Set(s)
}

func copyStruct(dst, src reflect.Value) {
	t := src.Type()
	if t == timeType {
		dst.Set(reflect.ValueOf(src.Interface().(time.Time).Round(0).UTC())) //nolint:forcetypeassert // just asked
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			dst.Set(src) // netip.Addr and the like: values that do not change
			return
		}
		if f.Tag.Get("json") == "-" {
			continue
		}
		if plain(f.Type.Kind()) {
			dst.Field(i).Set(src.Field(i))
		} else {
			copyValue(dst.Field(i), src.Field(i))
		}
	}
}

// plain kinds hold nothing that could be shared.
func plain(k reflect.Kind) bool { return k <= reflect.Complex128 || k == reflect.String }
