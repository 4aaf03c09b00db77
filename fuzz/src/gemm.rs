//! Matrix products against the oracle: `exact` bit for bit, `fast` within the bounds.

use arbitrary::{Result, Unstructured};
use causeway::gemm::{Algorithm, Forward, GradAB};
use causeway::{DType, HostTensor};
use causeway_verify::oracle::gemm::Product;

use crate::draw::{Draw, expect, expect_outcome, expect_untouched};

pub fn check(bytes: &mut Unstructured<'_>) -> Result<()> {
    let draw = &mut Draw::new(bytes)?;
    let device = draw.device()?;
    let dtype = draw.one_of(&[DType::F16, DType::BF16])?;
    let algorithm = draw.one_of(&[Algorithm::Exact, Algorithm::Fast])?;
    let size = |draw: &mut Draw<'_, '_>| if draw.rarely()? { draw.size(130) } else { draw.size(40) };
    let (m, n, k) = (size(draw)?, size(draw)?, size(draw)?);
    let a = draw.base(dtype, &[m, k])?;
    let check = |name: &str, product: Product<'_>, found: &HostTensor| {
        let result = match algorithm {
            Algorithm::Exact => product.chain().compare(&found.view()),
            Algorithm::Fast => product.expected().compare(&found.view(), None),
        };
        expect(name, &result, found);
    };
    if draw.flag()? {
        // A wrong N of B is a wrong N of C, and its own when there is no other.
        let b = draw.input("B", dtype, &[k, n])?;
        let mut c = draw.output("C", dtype, &[m, n])?;
        let outcome = Forward { a: a.view(), b: b.view(), algorithm, c: c.view_mut() }.run(&device);
        if expect_outcome(outcome, draw.mistake.as_ref()) {
            check("C", Product::forward(a.view(), b.view()), &c);
        } else {
            expect_untouched("C", &c);
        }
        return Ok(());
    }
    let b = draw.input("B", dtype, &[k, n])?;
    let grad_c = draw.input("grad_C", dtype, &[m, n])?;
    let mut grad_a = draw.output("grad_A", dtype, &[m, k])?;
    let mut grad_b = draw.output("grad_B", dtype, &[k, n])?;
    let (grad_a_view, grad_b_view) = (grad_a.view_mut(), grad_b.view_mut());
    let mut call = GradAB {
        grad_c: grad_c.view(),
        a: a.view(),
        b: b.view(),
        algorithm,
        grad_a: grad_a_view,
        grad_b: grad_b_view,
    };
    if expect_outcome(call.run(&device), draw.mistake.as_ref()) {
        check("grad_A", Product::grad_a(grad_c.view(), b.view()), &grad_a);
        check("grad_B", Product::grad_b(grad_c.view(), a.view()), &grad_b);
    } else {
        expect_untouched("grad_A", &grad_a);
        expect_untouched("grad_B", &grad_b);
    }
    Ok(())
}
