//! Helpers that sweep or search code and plan its sites; used by the crate's own tests, too.

use toehold_sites::plan::{Obstacle, Patch, plan};
use toehold_sites::sweep::{Bits, Swept, words};

/// Calls `look` with `code`, of which nothing is swept yet; returns its answer.
pub(crate) fn with_code<T>(code: &[u8], look: impl FnOnce(&mut Swept<'_>) -> T) -> T {
    let mut starts = vec![0; words(code.len())];
    let mut targets = starts.clone();
    let bits = Bits {
        starts: &mut starts,
        targets: &mut targets,
    };
    look(&mut Swept::new(code, bits))
}

/// The plans of `sites`, each made in view of those before it.
pub(crate) fn plans(swept: &Swept<'_>, sites: &[usize]) -> Vec<Result<Patch, Obstacle>> {
    let mut planned = Vec::new();
    let one = |site: &usize| {
        let result = plan(swept, *site, &planned);
        assert!(result.is_err() || result.is_ok_and(|patch| patch.fits(swept.code())));
        planned.extend(result);
        result
    };
    sites.iter().map(one).collect()
}
