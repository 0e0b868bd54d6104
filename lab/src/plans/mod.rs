//! The experiments.

mod ioat_copy;
mod srv_memaccess;

use crate::plan::Plan;

/// Every plan, in the order in which they are listed.
pub(crate) fn all() -> Vec<Box<dyn Plan>> {
    vec![
        Box::new(ioat_copy::IoatCopy::new()),
        Box::new(srv_memaccess::SrvMemaccess),
    ]
}
