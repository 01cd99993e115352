//! What is compiled again, and for which architectures. No compiler is needed: a script stands in for nvcc.

use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;

use super::*;

const TABLE: &str = r#"
    [add]
    args = ["warps: int"]
    instances = [{ warps = [1, 2, 4] }]
    [mul]
    args = []
    archs = ["120a"]
    instances = [{ threads = 64 }]
"#;

/// A project with two kernels, and an nvcc that writes its arguments.
struct Project {
    dir: PathBuf,
}

impl Project {
    fn new(name: &str) -> Project {
        let dir = env::temp_dir().join(format!("glm5-compile-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&dir);
        let project = Project { dir };
        project.file("cuda/instances.toml", TABLE);
        project.file("cuda/add.cu", "#include \"common/intrin.cuh\"\n#include \"params.h\"\n");
        project.file("cuda/mul.cu", "#include \"common/mul.cuh\"\n");
        project.file(
            "cuda/common/intrin.cuh",
            "#ifdef EMU\n#include \"../host/emu.hpp\"\n#endif\n#include <stdint.h>\n",
        );
        project.file("cuda/common/mul.cuh", "# include \"intrin.cuh\"\n");
        project.file("cuda/host/emu.hpp", "");
        project.file("cuda/include/params.h", "");
        let nvcc = "#!/bin/sh\nfor a; do [ \"$last\" = -o ] && out=$a; last=$a; done\necho \"$@\" > $out\n\
                    echo 'x.cu(1): warning: odd' >&2\n";
        project.file("nvcc", nvcc);
        fs::set_permissions(project.dir.join("nvcc"), fs::Permissions::from_mode(0o755)).unwrap();
        project
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn toolkit(&self) -> Toolkit {
        Toolkit { nvcc: self.dir.join("nvcc"), version: "13.0.88".into(), release: (13, 0) }
    }

    fn images(&self, archs: &str, toolkit: &Toolkit) -> Result<Vec<Image>> {
        let options = Options {
            cuda: self.dir.join("cuda"),
            out: self.dir.join("out"),
            cache: self.dir.join("cache"),
            archs: Arch::parse_list(archs)?,
            jobs: 2,
        };
        compile(&Table::load(&options.cuda)?, toolkit, &options)
    }

    /// The units that nvcc ran on.
    fn compiled(&self) -> Vec<String> {
        let images = self.images(DEFAULT_ARCHS, &self.toolkit()).unwrap();
        images.into_iter().filter(|i| i.compiled).map(|i| i.unit).collect()
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn only_what_changed_is_compiled() {
    let project = Project::new("changes");
    assert_eq!(project.compiled(), ["add.0", "mul.0"]);
    assert!(project.compiled().is_empty());
    // The same contents, newer.
    project.file("cuda/mul.cu", "#include \"common/mul.cuh\"\n");
    assert!(project.compiled().is_empty());
    project.file("cuda/mul.cu", "#include \"common/mul.cuh\"\n// other\n");
    assert_eq!(project.compiled(), ["mul.0"]);
    project.file("cuda/common/mul.cuh", "#include \"intrin.cuh\"\n// other\n");
    assert_eq!(project.compiled(), ["mul.0"]);
    project.file("cuda/include/params.h", "// other\n");
    assert_eq!(project.compiled(), ["add.0"]);
    project.file("cuda/common/intrin.cuh", "#include \"../host/emu.hpp\"\n");
    assert_eq!(project.compiled(), ["add.0", "mul.0"]);
    project.file("cuda/host/emu.hpp", "// the emulator alone\n");
    assert!(project.compiled().is_empty());
    // An instance more is its family only.
    project.file("cuda/instances.toml", &TABLE.replace("[1, 2, 4]", "[1, 2, 4, 8]"));
    assert_eq!(project.compiled(), ["add.0"]);
    // And back: still kept.
    project.file("cuda/instances.toml", TABLE);
    assert!(project.compiled().is_empty());
    let newer = Toolkit { version: "13.1.1".into(), ..project.toolkit() };
    assert!(project.images(DEFAULT_ARCHS, &newer).unwrap().iter().all(|i| i.compiled));
    assert!(project.images("120a", &project.toolkit()).unwrap()[0].compiled);
}

#[test]
fn paths_do_not_count() {
    let (a, b) = (Project::new("here"), Project::new("there"));
    let keys = |p: &Project| {
        p.compiled();
        let mut names: Vec<_> =
            fs::read_dir(p.dir.join("cache")).unwrap().map(|f| f.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(keys(&a), keys(&b));
}

#[test]
fn a_family_gets_the_architectures_that_suit_it() {
    let project = Project::new("archs");
    let images = project.images("90a,120a,compute_90", &project.toolkit()).unwrap();
    let names = |i: usize| images[i].archs.iter().map(Arch::name).collect::<Vec<_>>();
    assert_eq!(names(0), ["sm_90a", "sm_120a", "compute_90"]);
    assert_eq!(names(1), ["sm_120a"]);
    assert_eq!(images[0].warnings, ["x.cu(1): warning: odd"]);
    let said = fs::read_to_string(project.dir.join("out/add.0.fatbin")).unwrap();
    assert!(said.contains("-gencode=arch=compute_120a,code=sm_120a"));
    assert!(said.contains("-gencode=arch=compute_90,code=compute_90"));

    let images = project.images("90a", &project.toolkit()).unwrap();
    assert!(images[1].archs.is_empty() && !images[1].compiled);
    let table = images_rs(&images, Some((13, 0)));
    assert!(table.contains("NVCC: Option<&str> = Some(\"13.0\");"), "{table}");
    assert!(table.contains("Image { unit: \"mul.0\", archs: &[], bytes: &[] },"), "{table}");
    assert!(table.contains("Image { unit: \"add.0\", archs: &[\"sm_90a\"], bytes: &Aligned("), "{table}");
    for wrong in ["", "90a,", "sm_90", "9", "120aa", "compute_", "0120"] {
        assert!(Arch::parse_list(wrong).is_err(), "{wrong}");
    }
    let asked = |list: &[u8]| Arch::asked_by(Some(OsString::from_vec(list.to_vec())));
    assert_eq!(asked(b"90a").unwrap(), [Arch::Sass("90a".into())]);
    assert_eq!(Arch::asked_by(None).unwrap().len(), 3);
    for (wrong, reason) in [(&b"90a,\xff"[..], ": not UTF-8"), (b"90a, ", "GLM5_CUDA_ARCHS=90a, : `` is no")]
    {
        let error = asked(wrong).unwrap_err();
        assert!(error.contains(reason) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn damaged_files_are_compiled_again() {
    let project = Project::new("damaged");
    project.compiled();
    let kept = |end: &str| {
        let files = fs::read_dir(project.dir.join("cache")).unwrap().map(|f| f.unwrap().path());
        files
            .into_iter()
            .find(|f| f.to_string_lossy().contains("/add.0-") && f.to_string_lossy().ends_with(end))
            .unwrap()
    };
    let (image, report) = (kept(".fatbin"), kept(".ptxas.txt"));
    let whole = fs::read(&image).unwrap();
    let damage: [&dyn Fn(); 5] = [
        &|| fs::write(&image, "").unwrap(),
        &|| fs::write(&image, &whole[..whole.len() - 1]).unwrap(),
        &|| fs::write(&image, [b"x", &whole[1..]].concat()).unwrap(),
        &|| fs::write(&report, "").unwrap(),
        &|| fs::remove_file(kept(".sum")).unwrap(),
    ];
    for (i, damage) in damage.into_iter().enumerate() {
        damage();
        assert_eq!(project.compiled(), ["add.0"], "{i}");
        assert!(fs::read(&image).unwrap() == whole, "{i}");
        assert!(fs::read(project.dir.join("out/add.0.fatbin")).unwrap() == whole, "{i}");
        assert!(project.compiled().is_empty(), "{i}");
    }
}

#[test]
fn failures_are_told_and_leave_nothing() {
    let project = Project::new("failures");
    project.file("nvcc", "#!/bin/sh\necho 'add.cu(3): error: no such thing' >&2\nexit 2\n");
    let error = project.images("120a", &project.toolkit()).unwrap_err();
    assert!(error.contains("add.cu(3): error: no such thing"), "{error}");
    assert_eq!(fs::read_dir(project.dir.join("cache")).unwrap().count(), 0);

    project.file("nvcc", "#!/bin/sh\necho all is well\n");
    let error = project.images("120a", &project.toolkit()).unwrap_err();
    assert!(
        error.contains("nvcc reports success") && error.contains("wrote no file\nall is well"),
        "{error}"
    );

    project.file("cuda/instances.toml", &TABLE.replace("[mul]", "[mul]\nmiscompiled_by = ['13.2']"));
    let bad = Toolkit { release: (13, 2), ..project.toolkit() };
    let error = project.images("120a", &bad).unwrap_err();
    assert!(
        error.contains("nvcc 13.2 compiles the kernels `mul` wrongly") && !error.contains('\n'),
        "{error}"
    );

    project.file("cuda/new.cu", "");
    assert!(project.images("120a", &project.toolkit()).unwrap_err().contains("no family of new.cu"));
    fs::remove_file(project.dir.join("cuda/new.cu")).unwrap();
    fs::remove_file(project.dir.join("cuda/mul.cu")).unwrap();
    assert!(project.images("120a", &project.toolkit()).unwrap_err().contains("there is no mul.cu"));
}
