package guest

import (
	"strings"
	"testing"
)

func lower(source string, options ...string) Storage {
	return Storage{Driver: driverBlock, Source: source, Type: "erofs", Target: "/run/kata-containers/c1/rootfs", Options: append(options, lowerOption, layerOption)}
}

func TestJoinLayers(t *testing.T) {
	other := Storage{Driver: driverEphemeral, Target: "/e"}
	upper := Storage{Driver: driverBlock, Source: "/dev/u", Type: "ext4", Target: "/run/kata-containers/c1/rootfs", Options: []string{upperOption, layerOption, "noatime"}, Shared: true}
	list, err := JoinLayers([]Storage{other, lower("b", tableOption, partitionOption+"2"), upper, lower("a", tableOption, partitionOption+"1"), other})
	if err != nil || len(list) != 3 || len(list[1].Layers) != 3 || list[1].Target != upper.Target || !list[1].Shared || list[0].Target != "/e" || list[2].Target != "/e" {
		t.Fatalf("%+v, %v", list, err)
	}
	set, err := readLayers(list[1].Layers)
	if err != nil || set.upper == nil || set.upper.Source != "/dev/u" || len(set.lower) != 2 || set.lower[0].Source != "a" || set.lower[1].Source != "b" {
		t.Errorf("%+v, %v", set, err)
	}
	if set, err := readLayers([]Storage{lower("z", mkdirOption+"{{ mount 0 }}/d:0755"), lower("y")}); err != nil || set.lower[0].Source != "z" || set.lower[1].Source != "y" || len(set.dirs) != 1 || set.dirs[0] != "{{ mount 0 }}/d" {
		t.Errorf("without partitions the order stays: %+v, %v", set, err)
	}
	for what, c := range map[string]struct {
		list []Storage
		says string
	}{
		"two upper layers":           {[]Storage{upper, upper, lower("a")}, "two upper ones"},
		"no lower layer":             {[]Storage{upper}, "none is a lower one"},
		"an xfs":                     {[]Storage{{Type: "xfs", Options: []string{layerOption}}}, "an upper one an ext4"},
		"an upper erofs":             {[]Storage{{Type: "erofs", Options: []string{layerOption, upperOption}}}, "an upper one an ext4"},
		"a partition without number": {[]Storage{lower("a", tableOption)}, "go together"},
		"a number without table":     {[]Storage{lower("a", partitionOption+"1")}, "go together"},
		"a partition that is none":   {[]Storage{lower("a", tableOption, partitionOption+"x")}, "number of a partition"},
		"no root hash":               {[]Storage{lower("a", verityEnabled)}, "no root hash"},
		"a driver option":            {[]Storage{{Type: "erofs", Options: []string{layerOption}, DriverOptions: []string{"x"}}}, "not served"},
	} {
		if _, err := JoinLayers(c.list); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for disk, want := range map[string]string{"/dev/vda": "/dev/vda3", "/dev/nvme0n1": "/dev/nvme0n1p3", "/dev/loop0": "/dev/loop0p3"} {
		if got := partition(disk, "3"); got != want {
			t.Errorf("%s: %s, want %s", disk, got, want)
		}
	}
}

// FuzzLayers: with any options, reading them neither panics nor loses a layer.
func FuzzLayers(f *testing.F) {
	f.Add("erofs", lowerOption+" "+layerOption, partitionOption+"7 "+tableOption)
	f.Add("erofs", verityEnabled+" "+verityValue+"roothash=00", verityValue+"hashoffset=4096")
	f.Add("ext4", upperOption, mkdirOption+"{{ mount 1 }}/../..:0755")
	f.Fuzz(func(t *testing.T, kind, one, two string) {
		list := []Storage{lower("a"), {Driver: driverLayers, Type: kind, Options: strings.Fields(one)}, {Driver: driverLayers, Type: kind, Options: strings.Fields(two)}}
		set, err := readLayers(list)
		n := len(set.lower)
		if set.upper != nil {
			n++
		}
		if err == nil && n != len(list) {
			t.Errorf("%d layers of %d", n, len(list))
		}
	})
}
