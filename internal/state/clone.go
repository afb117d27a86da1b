package state

import (
	"reflect"
	"time"
)

// copier makes deep copies of one type in the form that a value would have after being encoded as
// JSON and decoded: times without a monotonic part and in UTC, fields that are not stored
// (json:"-", functions) zero, empty maps and slices nil. So readers get the same value whether or
// not the agent has been restarted meanwhile.
//
// It is compiled once from the type: a copy is one assignment of the whole, followed by a copy of
// each field that must not be shared. Lists of thousands of records are copied for every client,
// so the cost of a copy matters.
type copier func(v reflect.Value)

// cloner returns a function that copies values of type T.
func cloner[T any]() func(T) T {
	repair := compile(reflect.TypeFor[T](), map[reflect.Type]*copier{})
	return func(v T) T {
		if repair != nil {
			repair(reflect.ValueOf(&v).Elem())
		}
		return v
	}
}

// compile returns a function that makes a shallow copy of a t deep, or nil when it is deep
// already. seen holds the types being compiled, so that a type may contain itself.
func compile(t reflect.Type, seen map[reflect.Type]*copier) copier {
	if at := seen[t]; at != nil {
		return func(v reflect.Value) { (*at)(v) }
	}
	var c copier
	switch t.Kind() {
	case reflect.Pointer:
		c = copyPointer(compile(t.Elem(), seen))
	case reflect.Slice:
		c = copySlice(compile(t.Elem(), seen))
	case reflect.Map:
		c = copyMap(t, compile(t.Elem(), seen))
	case reflect.Struct:
		seen[t] = &c
		c = compileStruct(t, seen)
		delete(seen, t)
	case reflect.Array:
		if elem := compile(t.Elem(), seen); elem != nil {
			c = func(v reflect.Value) {
				for i := range v.Len() {
					elem(v.Index(i))
				}
			}
		}
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
		c = reflect.Value.SetZero
	default: // numbers and strings share nothing
	}
	return c
}

func copyPointer(elem copier) copier {
	return func(v reflect.Value) {
		if v.IsNil() {
			return
		}
		p := reflect.New(v.Type().Elem())
		p.Elem().Set(v.Elem())
		if elem != nil {
			elem(p.Elem())
		}
		v.Set(p)
	}
}

func copySlice(elem copier) copier {
	return func(v reflect.Value) {
		n := v.Len()
		if n == 0 {
			v.SetZero()
			return
		}
		s := reflect.MakeSlice(v.Type(), n, n)
		reflect.Copy(s, v)
		if elem != nil {
			for i := range n {
				elem(s.Index(i))
			}
		}
		v.Set(s)
	}
}

func copyMap(t reflect.Type, elem copier) copier {
	if t == reflect.TypeFor[map[string]string]() { // mostly labels
		return func(v reflect.Value) {
			if v.Len() == 0 {
				v.SetZero()
				return
			}
			old := v.Addr().Interface().(*map[string]string) //nolint:forcetypeassert // the type was just checked
			m := make(map[string]string, len(*old))
			for k, s := range *old {
				m[k] = s
			}
			*old = m
		}
	}
	return func(v reflect.Value) {
		if v.Len() == 0 {
			v.SetZero()
			return
		}
		m := reflect.MakeMapWithSize(t, v.Len())
		for it := v.MapRange(); it.Next(); {
			value := reflect.New(t.Elem()).Elem()
			value.Set(it.Value())
			if elem != nil {
				elem(value)
			}
			m.SetMapIndex(it.Key(), value)
		}
		v.Set(m)
	}
}

func compileStruct(t reflect.Type, seen map[reflect.Type]*copier) copier {
	if t == reflect.TypeFor[time.Time]() {
		return func(v reflect.Value) {
			at := v.Addr().Interface().(*time.Time) //nolint:forcetypeassert // the type was just checked
			*at = at.Round(0).UTC()
		}
	}
	type field struct {
		index  int
		repair copier
	}
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		switch {
		case !f.IsExported():
			return nil // netip.Addr and the like, which never change
		case f.Tag.Get("json") == "-":
			fields = append(fields, field{i, reflect.Value.SetZero})
		default:
			if repair := compile(f.Type, seen); repair != nil {
				fields = append(fields, field{i, repair})
			}
		}
	}
	if fields == nil {
		return nil
	}
	return func(v reflect.Value) {
		for _, f := range fields {
			f.repair(v.Field(f.index))
		}
	}
}
